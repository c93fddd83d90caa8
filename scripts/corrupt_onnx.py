# SPDX-License-Identifier: Apache-2.0
"""Hand corrupted ONNX files to the command line, all in one process: no crash, no hang, no traceback.

    python scripts/corrupt_onnx.py --count 2000 --seed 0

Prints a table of outcomes by kind of corruption, and exits with 1 if a file crashed, hung or ended in a traceback. A
crash ends the process: ``--keep DIR`` then holds the file (``current.onnx``) and the seed that made it
(``current.json``), and ``--first N`` continues from there.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tvm_stitch import cli
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert

NODE_CASES = (
    "test_softmax_axis_2 test_layer_normalization_2d_axis1 test_concat_2d_axis_1 test_split_equal_parts_2d"
    " test_reduce_sum_keepdims_example test_gather_1 test_slice test_conv_with_strides_padding test_where_example"
    " test_gemm_default_vector_bias test_clip_example test_batchnorm_epsilon test_transpose_all_permutations_1"
    " test_constant_pad test_reshape_reordered_all_dims test_if test_loop11"
).split()
OUTCOMES = ("compiled", "refused", "failed", "traceback", "hang")

Corrupt = Callable[[onnx.ModelProto, np.random.Generator], onnx.ModelProto | bytes]


def valid_models() -> list[onnx.ModelProto]:
    """Return small models that compile: ONNX's own node cases, a chain with constants, and a BERT encoder."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = {case.name: case.model for case in collect_testcases(None)}
    weight = numpy_helper.from_array(np.eye(4, dtype="float32"), "w")
    value = helper.make_tensor_value_info
    chain = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Concat", ["h", "x"], ["c"], axis=1),
            helper.make_node("Softmax", ["c"], ["s"], axis=-1),
            helper.make_node("ReduceMean", ["s"], ["y"], axes=[1], keepdims=0),
        ],
        "chain",
        [value("x", TensorProto.FLOAT, [3, 4])],
        [value("y", TensorProto.FLOAT, [3])],
        [weight],
    )
    made = helper.make_model(chain, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    bert = build_bert(BertConfig(layers=1, hidden=16, heads=2, ffn=32, vocabulary=24, sequence=8, batch=1))
    return [*(cases[name] for name in NODE_CASES if name in cases), made, made, bert]


# -- corruptions: each takes a copy of a model that it may change ---------------------------------------------
def _node(model: onnx.ModelProto, rng: np.random.Generator) -> Any:
    return model.graph.node[rng.integers(len(model.graph.node))]


def _one(values: Any, rng: np.random.Generator) -> int:
    return int(rng.integers(max(1, len(values))))


def flipped_bits(model: onnx.ModelProto, rng: np.random.Generator) -> bytes:
    data = bytearray(model.SerializeToString())
    for _ in range(rng.integers(1, 6)):
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def truncated(model: onnx.ModelProto, rng: np.random.Generator) -> bytes:
    data = model.SerializeToString()
    return data[: rng.integers(len(data))]


def emptied_input(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    if node.input:
        node.input[_one(node.input, rng)] = ""
    return model


def emptied_output(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    node.output[_one(node.output, rng)] = ""
    return model


def renamed_input(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    if node.input:
        node.input[_one(node.input, rng)] = str(rng.choice(["nowhere", "x", "\u00e9\n", node.output[0]]))
    return model


def removed_input(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    if node.input:
        del node.input[_one(node.input, rng)]
    return model


def swapped_inputs(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    names = list(node.input)
    rng.shuffle(names)
    del node.input[:]
    node.input.extend(names)
    return model


def more_inputs(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    node.input.extend([node.input[0] if node.input else ""] * int(rng.integers(1, 5)))
    return model


def removed_node(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    del model.graph.node[_one(model.graph.node, rng)]
    return model


def shuffled_nodes(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def cycle(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    first, last = model.graph.node[0], model.graph.node[-1]
    if first.input:
        first.input[_one(first.input, rng)] = last.output[0]
    return model


def duplicated_output(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    if rng.random() < 0.5:
        node.output.append(node.output[0])
    else:
        model.graph.output.append(model.graph.output[0])
    return model


def other_operator(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    names = [
        "Add",
        "Concat",
        "Conv",
        "Gather",
        "Identity",
        "If",
        "Loop",
        "MatMul",
        "ReduceMax",
        "Reshape",
        "Slice",
    ]
    names += ["Softmax", "Split", "Unheard", "", "Resize", "TopK", "LSTM", "Transpose", "Unsqueeze", "Expand"]
    _node(model, rng).op_type = str(rng.choice(names))
    return model


def other_domain(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    _node(model, rng).domain = str(rng.choice(["odd", "com.microsoft", "ai.onnx.ml", "ai.onnx"]))
    return model


def other_opset(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    model.opset_import[0].version = int(rng.choice([0, 1, 7, 9, 11, 13, 99, -1]))
    return model


def odd_attribute(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    nodes = [n for n in model.graph.node if n.attribute] or list(model.graph.node)
    node = nodes[_one(nodes, rng)]
    values = [
        -1,
        -7,
        0,
        1 << 40,
        -(1 << 62),
        [],
        [-1, -1],
        [0, 0, 0, 0, 0, 0, 0],
        1e30,
        float("nan"),
        float("inf"),
        "odd",
    ]
    value = values[rng.integers(len(values))]
    name = node.attribute[_one(node.attribute, rng)].name if node.attribute else "axis"
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value == []:
        node.attribute.append(AttributeProto(name=name, type=AttributeProto.INTS))
    else:
        node.attribute.append(helper.make_attribute(name, value))
    return model


def attribute_of_another_type(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    nodes = [n for n in model.graph.node if n.attribute]
    if nodes:
        node = nodes[_one(nodes, rng)]
        node.attribute[_one(node.attribute, rng)].type = int(rng.integers(0, 15))
    return model


def odd_shape(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    values = [*model.graph.input, *model.graph.output]
    dims = values[_one(values, rng)].type.tensor_type.shape.dim
    size = int(rng.choice([-1, 0, 1, 3, 1 << 31, 1 << 62, (1 << 63) - 1]))
    if dims and rng.random() < 0.8:
        dims[_one(dims, rng)].dim_value = size
    else:
        dims.add().dim_value = size
    return model


def other_dtype(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    values = [*model.graph.input, *model.graph.output]
    values[_one(values, rng)].type.tensor_type.elem_type = int(rng.integers(0, 30))
    return model


def no_type(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    values = [*model.graph.input, *model.graph.output]
    value = values[_one(values, rng)]
    if rng.random() < 0.5:
        value.ClearField("type")
    else:
        value.type.tensor_type.ClearField("shape")
    return model


def unnamed_value(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    values = [*model.graph.input, *model.graph.output, *model.graph.initializer]
    values[_one(values, rng)].name = str(rng.choice(["", "other", values[0].name]))
    return model


def missing_initializer(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    values = model.graph.initializer or model.graph.input
    if values:
        del values[_one(values, rng)]
    return model


def odd_initializer(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    held = [
        *model.graph.initializer,
        *(a.t for n in model.graph.node for a in n.attribute if a.HasField("t")),
    ]
    if not held:
        return odd_shape(model, rng)
    tensor = held[_one(held, rng)]
    kind = rng.integers(5)
    if kind == 0:
        tensor.raw_data = tensor.raw_data[: rng.integers(len(tensor.raw_data) + 1)]
    elif kind == 1:
        tensor.dims.append(int(rng.choice([-1, 0, 2, 1 << 40])))
    elif kind == 2:
        tensor.data_type = int(rng.integers(0, 30))
    elif kind == 3 and tensor.raw_data:
        tensor.raw_data = rng.bytes(len(tensor.raw_data))
    else:
        tensor.float_data.extend([float("nan")])
    return model


def data_elsewhere(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    if not model.graph.initializer:
        return missing_initializer(model, rng)
    tensor = model.graph.initializer[_one(model.graph.initializer, rng)]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key = "location"
    entry.value = str(
        rng.choice(["../../../../etc/passwd", "/etc/passwd", "missing.bin", "", "current.onnx"])
    )
    return model


def nothing(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    kind = rng.integers(3)
    if kind == 0:
        del model.graph.node[:]
    elif kind == 1:
        del model.graph.output[:]
    else:
        model.ClearField("graph")
    return model


CORRUPTIONS: tuple[Corrupt, ...] = (
    flipped_bits, flipped_bits, truncated, emptied_input, emptied_input, emptied_output, renamed_input, removed_input,
    swapped_inputs, more_inputs, removed_node, shuffled_nodes, cycle, duplicated_output, other_operator, other_domain,
    other_opset, odd_attribute, odd_attribute, attribute_of_another_type, odd_shape, other_dtype, no_type,
    unnamed_value, missing_initializer, odd_initializer, odd_initializer, data_elsewhere, nothing,
)  # fmt: skip


def corrupted(models: list[onnx.ModelProto], seed: int, number: int) -> tuple[str, bytes]:
    """Return the name of a corruption, and the bytes of a file that has it, sometimes with a second one."""
    rng = np.random.default_rng([seed, number])
    model = onnx.ModelProto()
    model.CopyFrom(models[rng.integers(len(models))])
    corrupt = CORRUPTIONS[rng.integers(len(CORRUPTIONS))]
    if rng.random() < 0.2:
        more = CORRUPTIONS[rng.integers(len(CORRUPTIONS))](model, rng)
        if isinstance(more, onnx.ModelProto):
            model = more
    try:
        made = corrupt(model, rng)
    except (ValueError, TypeError, IndexError):  # a second corruption of something that the first has emptied
        made = model
    return corrupt.__name__, made if isinstance(made, bytes) else made.SerializeToString()


class Hang(BaseException):
    """Raised at the time limit of a file."""


def _stop(_number: int, _frame: Any) -> None:
    raise Hang


def run_one(command: list[str], limit: float) -> tuple[str, str]:
    """Return the outcome of a command line, and its output to stderr."""
    err = io.StringIO()
    faulthandler.dump_traceback_later(4 * limit, exit=True)  # for native code that does not return
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            code = cli.main(command)
    except Hang:
        return "hang", err.getvalue()
    except BaseException as error:
        return "traceback", f"{err.getvalue()}\n{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    said = err.getvalue()
    if "Traceback" in said or code not in (0, 1, 2):
        return "traceback", said
    return ("compiled", "failed", "refused")[code], said


def run(count: int, seed: int, first: int, every: int, limit: float, keep: Path) -> Counter[tuple[str, str]]:
    """Corrupt files and pass them on. Every ``every``-th file is compiled, the others are explained."""
    models = valid_models()
    found: Counter[tuple[str, str]] = Counter()
    path = keep / "current.onnx"
    before = signal.signal(signal.SIGALRM, _stop)
    begin = time.perf_counter()
    try:
        for number in range(first, first + count):
            name, data = corrupted(models, seed, number)
            path.write_bytes(data)
            (keep / "current.json").write_text(
                json.dumps({"seed": seed, "number": number, "corruption": name})
            )
            words = (
                ["compile", str(path), "-o", str(keep / "out")]
                if number % every == 0
                else ["explain", str(path)]
            )
            outcome, said = run_one([*words, "--quiet"], limit)
            found[name, outcome] += 1
            if outcome in ("traceback", "hang"):
                (keep / f"{outcome}-{number}.onnx").write_bytes(data)
                print(f"{outcome}: file {number} ({name}): {said.strip()[-600:]}", flush=True)
            if (number - first + 1) % 100 == 0:
                seconds = time.perf_counter() - begin
                print(f"{number - first + 1} files, {seconds:.0f} s", file=sys.stderr, flush=True)
    finally:
        signal.signal(signal.SIGALRM, before)
    return found


def table(found: Counter[tuple[str, str]]) -> str:
    """Write the outcomes by corruption."""
    lines = [f"{'corruption':28}" + "".join(f"{o:>11}" for o in OUTCOMES)]
    for name in sorted({name for name, _ in found}):
        lines.append(f"{name:28}" + "".join(f"{found[name, o]:11d}" for o in OUTCOMES))
    totals = [sum(n for (_, o), n in found.items() if o == outcome) for outcome in OUTCOMES]
    return "\n".join([*lines, f"{'all':28}" + "".join(f"{n:11d}" for n in totals)])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="files (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first file (default: %(default)s)"
    )
    parser.add_argument("--every", type=int, default=10, help="compile every n-th (default: %(default)s)")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="most seconds for a file (default: %(default)s)"
    )
    parser.add_argument("--keep", type=Path, help="folder for the files (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        keep = args.keep or Path(temporary)
        keep.mkdir(parents=True, exist_ok=True)
        found = run(args.count, args.seed, args.first, args.every, args.limit, keep)
    print(table(found))
    return int(any(outcome in ("traceback", "hang") for _, outcome in found))


if __name__ == "__main__":
    sys.exit(main())
