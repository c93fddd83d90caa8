#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time one token through layers of experts on this CPU, next to ONNX Runtime.

    python scripts/bench_experts.py
    python scripts/bench_experts.py --hidden 1024 --inner 1792 --threads 2

Each layer gathers the weights of its chosen experts by ``GatherND``, and multiplies one row by each. PyTorch's exporter
writes the mixtures of experts of transformers like that. Blocks of calls alternate between tvm_stitch and ONNX Runtime,
and the median block counts.

Exit code: 0, or 1 if the results differ, 2 for a usage error.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any


def model(layers: int, experts: int, chosen: int, hidden: int, inner: int) -> Any:
    """Return an ONNX model of layers of experts: a row [1, hidden] and numbers [layers, chosen] to a row."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []

    def constant(name: str, array: Any) -> str:
        weights.append(numpy_helper.from_array(array, name))
        return name

    def node(operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"value_{len(nodes)}"
        nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def experts_of(name: str, rows: int, columns: int, at: str) -> str:
        drawn = rng.standard_normal((experts, rows, columns)).astype("float32") / columns**0.5
        return node("GatherND", constant(name, drawn), at)

    column = constant("column", np.array([chosen, -1, 1], "int64"))
    coordinates = constant("coordinates", np.array([chosen, 1], "int64"))
    value = "row"
    for layer in range(layers):
        number = constant(f"layer_{layer}", np.array(layer, "int64"))
        at = node("Reshape", node("Gather", "numbers", number, axis=0), coordinates)
        rows = node(
            "Reshape", node("Expand", value, constant(f"rows_{layer}", np.array([chosen, hidden]))), column
        )
        gate = node("MatMul", experts_of(f"gate_{layer}", inner, hidden, at), rows)
        up = node("MatMul", experts_of(f"up_{layer}", inner, hidden, at), rows)
        product = node("Mul", node("Mul", gate, node("Sigmoid", gate)), up)
        down = node("MatMul", experts_of(f"down_{layer}", hidden, inner, at), product)
        axes = constant(f"axes_{layer}", np.array([0], "int64"))
        added = node(
            "ReduceSum", node("Squeeze", down, constant(f"last_{layer}", np.array([2]))), axes, keepdims=1
        )
        value = node("Add", value, added)
    graph = helper.make_graph(
        nodes,
        "experts",
        [
            helper.make_tensor_value_info("row", TensorProto.FLOAT, [1, hidden]),
            helper.make_tensor_value_info("numbers", TensorProto.INT64, [layers, chosen]),
        ],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, hidden])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def medians(calls: Sequence[Callable[[], Any]], blocks: int, repeats: int) -> list[float]:
    """Return the median milliseconds of each call, over blocks in turns."""
    spent: list[list[float]] = [[] for _ in calls]
    for _ in range(blocks):
        for times, call in zip(spent, calls, strict=True):
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            times.append((time.perf_counter() - begin) / repeats * 1e3)
    return [sorted(times)[blocks // 2] for times in spent]


def measure(args: argparse.Namespace) -> int:
    """Compile, compare and time the model. Return the exit code."""
    import _checkout  # noqa: F401  (puts the packages on the path)
    import numpy as np
    import onnxruntime
    import tvm
    from tvm import relax

    import tvm_stitch
    from tvm_stitch.importers.onnx.load import from_onnx

    built = model(args.layers, args.experts, args.chosen, args.hidden, args.inner)
    rng = np.random.default_rng(1)
    row = rng.standard_normal((1, args.hidden)).astype("float32")
    numbers = rng.integers(0, args.experts, (args.layers, args.chosen))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(
        built.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    vm = relax.VirtualMachine(tvm_stitch.compile(from_onnx(built)), tvm.cpu())
    given = [tvm.runtime.tensor(row), tvm.runtime.tensor(numbers)]
    (wanted,) = session.run(None, {"row": row, "numbers": numbers})
    error = float(np.abs(vm["main"](*given).numpy() - wanted).max() / np.abs(wanted).max())
    ours, theirs = medians(
        [lambda: vm["main"](*given), lambda: session.run(None, {"row": row, "numbers": numbers})],
        args.blocks,
        args.repeats,
    )
    print("threads  hidden  inner  tvm_stitch, ms  ONNX Runtime, ms  ratio    error")
    print(
        f"{args.threads:7}{args.hidden:8}{args.inner:7}{ours:16.3f}{theirs:18.3f}{theirs / ours:7.2f}{error:9.1e}"
    )
    return int(error > 1e-4)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "--layers": 2, "--experts": 8, "--chosen": 2, "--hidden": 512, "--inner": 1024, "--threads": 1, "--blocks": 9,
        "--repeats": 10,
    }.items():  # fmt: skip
        parser.add_argument(name, type=int, default=default, help="(default: %(default)s)")
    args = parser.parse_args(argv)
    if min(vars(args).values()) < 1:
        parser.error("all numbers must be 1 or more")
    os.environ["TVM_NUM_THREADS"] = str(args.threads)
    return measure(args)


if __name__ == "__main__":
    sys.exit(main())
