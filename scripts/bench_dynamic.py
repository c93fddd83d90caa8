# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of symbolic shapes on this machine's CPU: one build for all sizes against a build for each.

    python scripts/bench_dynamic.py                  # all models of tests/models/zoo that have symbolic extents
    python scripts/bench_dynamic.py bert_dynamic --sizes 4 --repeats 100

Both builds run in turn, and the least time of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import tvm
from tvm import relax

from tests.models.zoo.models import MODELS
from tvm_stitch.relax import pipeline
from tvm_stitch.target import resolve_target


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each model and size, and return 0."""
    dynamic = [name for name in MODELS if name.endswith("_dynamic") or name.startswith("llama")]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=dynamic, metavar="MODEL", help=", ".join(dynamic))
    parser.add_argument(
        "--sizes", type=int, default=4, help="sizes of each model, spread over those of the tests"
    )
    parser.add_argument("--repeats", type=int, default=60, help="runs of each build")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.models if name not in dynamic]
    if unknown or options.sizes < 1 or options.repeats < 1:
        parser.error(
            f"no model of symbolic shapes: {unknown}" if unknown else "sizes and repeats are 1 at least"
        )
    print(f"{'model':22}{'size':>12}{'symbolic, us':>14}{'static, us':>14}{'ratio':>8}")
    for name in options.models:
        model = MODELS[name]()
        symbolic = _function(model.mod, model.func)
        step = max(len(model.sizes) // options.sizes, 1)
        for size in model.sizes[::step][: options.sizes]:
            inputs = model.draw(*size)
            static = _function(bound(model.mod, model.func, [x.shape for x in inputs]), model.func)
            values = model.arguments(inputs)
            ours, fixed = (seconds * 1e6 for seconds in _least([symbolic, static], values, options.repeats))
            shown = "x".join(map(str, size))
            print(f"{name:22}{shown:>12}{ours:14.0f}{fixed:14.0f}{ours / fixed:8.2f}", flush=True)
    return 0


def bound(mod: tvm.IRModule, func: str, shapes: Sequence[Sequence[int]]) -> tvm.IRModule:
    """Return the module with a function's symbolic extents fixed for inputs of these shapes."""
    values = {}
    for param, shape in zip(mod[func].params, shapes):
        for extent, size in zip(getattr(param.ty, "shape", None) or (), shape):
            if isinstance(extent, tvm.ir.Var):
                values[extent] = size
    return relax.transform.BindSymbolicVars(values, func)(mod)


def _function(mod: tvm.IRModule, func: str) -> Any:
    target = resolve_target("native")
    return relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=pipeline(target)), tvm.cpu())[func]


def _least(functions: Sequence[Any], values: Sequence[Any], repeats: int) -> list[float]:
    """Return the seconds of the fastest run of each function. The functions take turns."""
    least = [float("inf")] * len(functions)
    for _ in range(repeats):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function(*values)
            least[i] = min(least[i], time.perf_counter() - start)
    return least


if __name__ == "__main__":
    raise SystemExit(main())
