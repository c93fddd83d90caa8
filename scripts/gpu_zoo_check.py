#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the small models of tests/models/zoo on a GPU, at their sizes, against float64.

    python scripts/gpu_zoo_check.py
    python scripts/gpu_zoo_check.py --models llama_decode bert_dynamic --sizes 40

One build serves all sizes of a model with symbolic shapes. Every call gets memory as earlier calls left it, and runs
twice: results that differ between equal calls are a race. The script prints a table. The exit code is 0 only if all is
right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import numpy as np
import tvm
from _gpu import need_gpu
from models.errors import relative_error
from tvm import relax

from tests.models.zoo.models import MODELS
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.target import resolve_target

TOLERANCE = 2e-5
"""Most error, relative to the largest element of a result: float32 through a layer or two."""


def error_of(outputs: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """Return the largest error of floating-point results. It is infinite if another result or a shape differs."""
    pairs = list(zip(outputs, wanted, strict=True))
    exact = [pair for pair in pairs if pair[1].dtype.kind != "f"]
    if not all(np.array_equal(got, want) for got, want in exact):
        return float("inf")
    floats = [pair for pair in pairs if pair[1].dtype.kind == "f"]
    return relative_error([got for got, _ in floats], [want for _, want in floats])


def evenly(values: Sequence[Any], most: int) -> list[Any]:
    """Choose this many of the values evenly, from the first to the last, or all of them."""
    count = min(most, len(values))
    return [values[i * (len(values) - 1) // max(1, count - 1)] for i in range(count)]


def check(name: str, target: Any, most: int) -> tuple[int, float, bool, int]:
    """Return sizes, the largest error, whether equal calls gave equal bits, and scopes left to TVM."""
    model, recorder = MODELS[name](), Recorder()
    device = tvm.device("cuda" if target.kind.name == "cuda" else "cpu", 0)
    executable = tvm.compile(model.mod, target, relax_pipeline=pipeline(target, recorder=recorder))
    function = relax.VirtualMachine(executable, device)[model.func]
    sizes = evenly(model.sizes, most)
    worst, equal = 0.0, True
    for size in sizes:
        inputs = model.draw(*size)
        tensors = model.arguments(inputs, device)
        first, second = (_arrays(function(*tensors)) for _ in range(2))
        equal &= all(np.array_equal(a, b) for a, b in zip(first, second))
        worst = max(worst, error_of(first, model.reference(inputs)))
    return len(sizes), worst, equal, len(recorder.declined)


def _arrays(result: Any) -> list[np.ndarray]:
    return [each.numpy() for each in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="cuda", choices=["cuda", "llvm", "native"])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="NAME")
    parser.add_argument("--sizes", type=int, default=12, help="most sizes of a model (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.sizes < 1:
        parser.error("--sizes must be 1 or more")
    need_gpu(options.target)
    target, right = resolve_target(options.target), True
    print(f"{'model':24}{'sizes':>6}{'error':>10}{'equal bits':>12}{'left to TVM':>13}")
    for name in options.models:
        try:
            sizes, worst, equal, left = check(name, target, options.sizes)
        except Exception as err:
            print(f"{name:24}{type(err).__name__}: {str(err).strip().splitlines()[-1][:150]}", flush=True)
            right = False
            continue
        print(f"{name:24}{sizes:6d}{worst:10.1e}{'yes' if equal else 'NO':>12}{left:13d}", flush=True)
        right = right and equal and worst < TOLERANCE
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
