# SPDX-License-Identifier: Apache-2.0
"""Compare recurrent layers with ONNX Runtime on this machine's CPU: one build for all lengths and batches.

    python scripts/bench_recurrent.py                              # LSTM, GRU and RNN, hidden 64 to 512
    python scripts/bench_recurrent.py LSTM --hidden 64 --steps 64 --batch 1 --blocks 3

Both take turns by blocks of calls, with the same number of threads, and the medians count. Models have weights drawn at
random, as many input features as hidden units, and symbolic length and batch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tvm_stitch.support.cores import threads, use_all_cores

use_all_cores()

import onnx  # noqa: E402
import tvm  # noqa: E402
from _measure import time_on_cpu  # noqa: E402
from _table import aligned, geometric_mean  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tvm import relax  # noqa: E402

import tvm_stitch  # noqa: E402
from tvm_stitch.importers.onnx.load import from_onnx  # noqa: E402

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each layer and size, and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=list(GATES), metavar="KIND", help=", ".join(GATES))
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 128, 256, 512], help="hidden units")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, nargs="+", default=[64, 300])
    parser.add_argument("--direction", default="forward", choices=("forward", "reverse", "bidirectional"))
    parser.add_argument("--blocks", type=int, default=7, help="blocks of calls of each")
    options = parser.parse_args(arguments)
    unknown = [kind for kind in options.kinds if kind not in GATES]
    if unknown or options.blocks < 1:
        parser.error(f"no layer: {unknown}" if unknown else "blocks are 1 at least")
    head = [
        "layer",
        "hidden",
        "batch",
        "steps",
        "compile, s",
        "ours, ms",
        "ONNX Runtime, ms",
        "ratio",
        "error",
    ]
    body, ratios = [], []
    for kind in options.kinds:
        for hidden in options.hidden:
            model = model_of(kind, hidden, options.direction)
            start = time.perf_counter()
            ours = relax.VirtualMachine(tvm_stitch.compile(from_onnx(model)), tvm.cpu())["main"]
            spent = time.perf_counter() - start
            peer = _session(model)
            for batch in options.batch:
                for steps in options.steps:
                    x = np.random.default_rng(0).standard_normal((steps, batch, hidden)).astype("float32")
                    given = tvm.runtime.tensor(x)
                    mine, theirs = ours(given), peer.run(None, {"X": x})
                    error = max(float(np.abs(a.numpy() - b).max()) for a, b in zip(mine, theirs, strict=True))
                    timed = time_on_cpu(
                        {"ours": lambda: ours(given), "peer": lambda: peer.run(None, {"X": x})},  # noqa: B023
                        options.blocks,
                    )
                    a, b = (timed[name].seconds * 1e3 for name in ("ours", "peer"))
                    ratios.append(b / a)
                    sizes = [kind, str(hidden), str(batch), str(steps), f"{spent:.1f}"]
                    body.append([*sizes, f"{a:.3f}", f"{b:.3f}", f"{b / a:.2f}", f"{error:.0e}"])
                    print("  ".join(body[-1]), file=sys.stderr, flush=True)
    print(aligned(head, body))
    print(f"threads {threads()}, geometric mean of the ratios {geometric_mean(ratios):.2f}")
    return 0


def model_of(
    kind: str, hidden: int, direction: str = "forward", dtype: str = "float32", linear: bool = False
) -> onnx.ModelProto:
    """Return a model of one recurrent layer with random weights, and symbolic numbers of steps and rows.

    Args:
        kind: one of ``GATES``.
        hidden: hidden units, and input features.
        direction: as ONNX names it.
        dtype: type of weights and states, ``float32`` or ``float16``.
        linear: whether a GRU applies the reset gate to the product.
    """
    directions, gates = 2 if direction == "bidirectional" else 1, GATES[kind]
    draw = np.random.default_rng(1)
    scale = 1 / np.sqrt(hidden)
    shapes = {"W": (gates * hidden, hidden), "R": (gates * hidden, hidden), "B": (2 * gates * hidden,)}
    weights = [
        numpy_helper.from_array((draw.uniform(-scale, scale, (directions, *shape))).astype(dtype), name)
        for name, shape in shapes.items()
    ]
    results = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    more = {"linear_before_reset": 1} if linear else {}
    node = helper.make_node(
        kind, ["X", "W", "R", "B"], results, hidden_size=hidden, direction=direction, **more
    )
    element = TensorProto.FLOAT16 if dtype == "float16" else TensorProto.FLOAT
    x = helper.make_tensor_value_info("X", element, ["steps", "batch", hidden])
    outputs = [helper.make_tensor_value_info(name, element, None) for name in results]
    graph = helper.make_graph([node], "layer", [x], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


if __name__ == "__main__":
    raise SystemExit(main())
