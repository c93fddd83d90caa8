# SPDX-License-Identifier: Apache-2.0
"""Compile a transformer encoder with and without stitching, and set them side by side.

What `make run` runs: kernels launched, times on this machine's CPU beside ONNX Runtime's, and the error against it.
Exits with 1 when the stitched model differs from it by more than 1e-4.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm_stitch.cores import use_all_cores

use_all_cores()
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import tvm  # noqa: E402
from tvm import relax  # noqa: E402
from tvm.target import Target  # noqa: E402

import tvm_stitch  # noqa: E402
from tvm_stitch.relax import pipeline  # noqa: E402
from tvm_stitch.testing import compare, runner, tensors, timing  # noqa: E402
from tvm_stitch.testing.bert import BertConfig, build_bert, random_inputs  # noqa: E402
from tvm_stitch.testing.count import KernelCount, count_kernels  # noqa: E402

TOLERANCE = 1e-4
BUILT = Path("build") / "bert_encoder.onnx"
CPU = Target({"kind": "llvm", "mcpu": tvm.get_global_func("target.llvm_get_system_cpu")()})
"""This machine's own."""
GPU = Target({"kind": "cuda", "arch": "sm_90"}, host=Target("llvm"))


def main() -> int:
    args = _arguments()
    if args.repeats < 1:
        print(f"error: --repeats must be at least 1, got {args.repeats}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    if args.model is None:
        config = BertConfig()
        BUILT.parent.mkdir(exist_ok=True)
        path = BUILT
        onnx.save(build_bert(config), str(path))
        what = (
            f"BERT encoder: {config.layers} layers, hidden {config.hidden}, {config.heads} heads, "
            f"sequence {config.sequence}, seeded weights"
        )
    elif args.model.is_file():
        path, what = args.model, "ONNX model"
    else:
        print(
            f"error: no file {args.model}; give the path of an ONNX model: make run MODEL=...",
            file=sys.stderr,
        )
        return 2
    print(f"{what} ({path}, {path.stat().st_size / 1e6:.1f} MB)", flush=True)
    model = compare.load_onnx(onnx.load(str(path)))
    inputs = random_inputs(BertConfig()) if args.model is None else tensors.make_inputs(model.inputs)

    counts = {}
    for target, name in ((CPU, "llvm"), (GPU, "cuda sm_90")):
        for kind, passes in _pipelines(target).items():
            _progress(f"counting kernels: {name}, {kind}")
            counts[name, kind] = count_kernels(model.mod, target, passes)
    _progress("compiling for cuda sm_90")
    tvm_stitch.compile(model.mod, target=GPU)
    _print_counts(counts)

    error = _run_on_cpu(model, inputs, counts, args.repeats)
    print(f"total: {time.perf_counter() - start:.0f} s")
    if not error <= TOLERANCE:
        print(f"error: {error:.1e} against ONNX Runtime is more than {TOLERANCE:.0e}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="an ONNX file (default: a BERT encoder built here)")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each (default: %(default)s)")
    return parser.parse_args()


def _pipelines(target: Target) -> dict[str, Any]:
    return {"stock": relax.get_default_pipeline(target), "stitched": pipeline(target)}


def _print_counts(counts: dict[tuple[str, str], KernelCount]) -> None:
    print(f"\n{'kernels launched per call':28}{'total':>8}{'memory-intensive':>18}{'compute-intensive':>19}")
    for (target, kind), count in counts.items():
        print(
            f"{target:13}{kind:15}{count.total:8d}{count.memory_intensive:18d}{count.compute_intensive:19d}"
        )
    print(flush=True)


def _run_on_cpu(
    model: compare.OnnxModel,
    inputs: dict[str, np.ndarray],
    counts: dict[tuple[str, str], KernelCount],
    repeats: int,
) -> float:
    """Time stock, stitched and ONNX Runtime, print a table, and return the stitched model's error."""
    runners = {}
    for kind, passes in _pipelines(CPU).items():
        _progress(f"compiling for llvm, {kind}")
        executable = (
            tvm_stitch.compile(model.mod, target=CPU)
            if kind == "stitched"
            else tvm.compile(model.mod, CPU, relax_pipeline=passes)
        )
        runners[kind] = runner.Runner(executable, CPU, list(inputs.values()))
    _progress("running ONNX Runtime")
    peer = compare.onnxruntime_call(model.proto, inputs)
    expected = peer()
    _progress(f"timing on llvm, {repeats} calls each, interleaved")
    calls: dict[str, Callable[[], Any]] = {**runners, "ONNX Runtime": peer}
    times = timing.interleaved(list(calls.values()), repeats)
    seconds = dict(zip(calls, [each.median for each in times], strict=True))
    errors = {kind: compare.greatest_error(one.outputs(), expected) for kind, one in runners.items()}
    samples: dict[str, list[float]] = {kind: [] for kind in runners}
    for _ in range(repeats):
        for kind, one in runners.items():
            samples[kind].append(one.kernel_seconds(counts["llvm", kind].names_of("memory")))
    own = {kind: statistics.median(values) for kind, values in samples.items()}
    title = f"{CPU.attrs['mcpu']}, {os.environ['TVM_NUM_THREADS']} threads, per call"
    print(f"{title:28}{'median':>12}{'memory-intensive kernels':>27}{'error':>12}")
    for kind in runners:
        print(f"{'':13}{kind:15}{seconds[kind] * 1e3:9.1f} ms{own[kind] * 1e3:24.2f} ms{errors[kind]:12.1e}")
    print(f"{'':13}{'ONNX Runtime':15}{seconds['ONNX Runtime'] * 1e3:9.1f} ms")
    ratios = seconds["stock"] / seconds["stitched"], own["stock"] / own["stitched"]
    print(f"{'':13}{'stock/stitched':15}{ratios[0]:10.2f} x{ratios[1]:25.2f} x")
    print(f"{'ONNX Runtime/stitched':>28}{seconds['ONNX Runtime'] / seconds['stitched']:10.2f} x")
    print("memory-intensive kernels: those without a matmul; what is fused into a matmul is not in them")
    print("error: the greatest absolute difference to ONNX Runtime")
    return errors["stitched"]


def _progress(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
