# SPDX-License-Identifier: Apache-2.0
"""Modules compiled by the CPU pipeline, and run against float64 NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from stitch_testing.reference import relax as reference
from tvm_stitch.plan.cpu.tile import CpuMapping
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.relax.pipeline import Recorder, pipeline

TOLERANCE = {
    "float32": (3e-5, 3e-5),
    "float16": (4e-3, 4e-3),
    "bfloat16": (3e-2, 3e-2),
    "float64": (1e-12, 1e-12),
}
F32 = "float32"
Body = Callable[..., Sequence[relax.Expr]]


def build(shapes: Sequence[Sequence[Any]], dtypes: Sequence[str], body: Body) -> tvm.IRModule:
    """Return a module whose ``main`` takes tensors and returns what ``body(emit, *tensors)`` lists."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"a{i}", relax.TensorType(shape, dtype))
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    with builder.function("main", params):
        with builder.dataflow():
            outputs = [builder.emit_output(value) for value in body(builder.emit, *params)]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


def draw(shape: Sequence[int], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(abs(hash((tuple(shape), dtype == "bool"))) % 2**32)
    if dtype == "bool":
        return rng.random(shape) < 0.7
    if dtype.startswith(("int", "uint")):
        return rng.integers(0 if dtype.startswith("u") else -9, 10, shape).astype(dtype)
    return rng.standard_normal(shape).astype(F32).astype(np.dtype(dtype))


class Compiled:
    """A module compiled with stitching, and the plans of its kernels."""

    def __init__(self, mod: tvm.IRModule, target: Any = "llvm"):
        target = tvm.target.Target(target)
        recorder = Recorder()
        self.mod = mod
        self.executable = tvm.compile(mod, target, relax_pipeline=pipeline(target, None, recorder))
        assert not recorder.declined, recorder.declined
        self.plans: list[KernelPlan] = list(recorder.plans.values())
        self.mappings = [cast(CpuMapping, plan.stage.mapping) for plan in self.plans]
        self.main = relax.VirtualMachine(self.executable, tvm.cpu())["main"]

    def check(self, inputs: Sequence[np.ndarray], tolerance: dict | None = None) -> None:
        """Compare a run with the reference."""
        found = self.main(*[tvm.runtime.tensor(a) for a in inputs])
        outputs = [found.numpy()] if hasattr(found, "numpy") else [t.numpy() for t in found]
        with np.errstate(all="ignore"):
            expected = reference.evaluate(self.mod, inputs)
        assert not reference.mismatches(outputs, expected, tolerance or TOLERANCE)

    @property
    def source(self) -> str:
        """The LLVM IR."""
        found = [self.executable.mod, *self.executable.mod.imports]
        return "\n".join(m.inspect_source("ll") for m in found if m.kind == "llvm")


def check(shapes: Any, dtypes: Sequence[str], body: Body, tolerance: dict | None = None) -> Compiled:
    """Compile for static shapes, run once, compare."""
    compiled = Compiled(build(shapes, dtypes, body))
    compiled.check([draw(s, d) for s, d in zip(shapes, dtypes, strict=True)], tolerance)
    return compiled


def softmax(axis: int) -> Body:
    def body(emit: Callable, x: relax.Expr) -> list[relax.Expr]:
        shifted = emit(R.subtract(x, emit(R.max(x, axis=axis, keepdims=True))))
        raised = emit(R.exp(shifted))
        return [emit(R.divide(raised, emit(R.sum(raised, axis=axis, keepdims=True))))]

    return body


def one() -> relax.Expr:
    return relax.const(1.0, F32)


MOVES: dict[str, tuple[list[tuple[int, ...]], Body]] = {
    "transpose": ([(9, 77)], lambda e, x: [e(R.exp(e(R.permute_dims(x, [1, 0]))))]),
    "large transpose": ([(200, 130)], lambda e, x: [e(R.add(e(R.permute_dims(x, [1, 0])), one()))]),
    "heads": ([(2, 8, 12, 16)], lambda e, x: [e(R.add(e(R.permute_dims(x, [0, 2, 1, 3])), one()))]),
    "reshape": ([(6, 35)], lambda e, x: [e(R.exp(e(R.reshape(x, (10, 21)))))]),
    "concat": ([(9, 30), (9, 47)], lambda e, x, y: [e(R.exp(e(R.concat([e(R.tanh(x)), y], axis=1))))]),
    "concat outer": ([(9, 30), (4, 30)], lambda e, x, y: [e(R.exp(e(R.concat([e(R.tanh(x)), y], axis=0))))]),
    "concat softmax": (
        [(9, 30), (9, 47)],
        lambda e, x, y: softmax(-1)(e, e(R.concat([e(R.tanh(x)), y], axis=1))),
    ),
    "concat short": (
        [(3, 5), (3, 5), (3, 5)],
        lambda e, x, y, z: [e(R.add(e(R.concat([x, y, z], axis=1)), one()))],
    ),
    "concat of one row's parts": (
        [(1, 5), (1, 5)],
        lambda e, x, y: [e(R.add(e(R.concat([x, y], axis=1)), one()))],
    ),
    # Math below conditions that differ between rows, and between the lanes of a vector.
    "concat sines": (
        [(9, 11), (9, 11)],
        lambda e, x, y: [e(R.concat([e(R.sin(x)), e(R.power(y, x))], axis=0))],
    ),
    "many parts": (
        [(7, 3)] * 12,
        lambda e, *xs: [e(R.add(e(R.concat([e(R.sin(x)) for x in xs], axis=1)), one()))],
    ),
    "pad": ([(9, 30)], lambda e, x: [e(R.exp(e(R.nn.pad(x, (1, 2, 3, 4)))))]),
    "pad image": ([(2, 3, 40, 41)], lambda e, x: [e(R.add(e(R.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1))), one()))]),
    "halves": (
        [(9, 86)],
        lambda e, x: [
            e(
                R.multiply(
                    e(R.strided_slice(x, [1], [0], [43])), e(R.exp(e(R.strided_slice(x, [1], [43], [86]))))
                )
            )
        ],
    ),
    "every second": ([(9, 86)], lambda e, x: [e(R.exp(e(R.strided_slice(x, [1], [0], [86], [2]))))]),
    "broadcasts": (
        [(4, 1, 9), (1, 5, 9), (4, 5, 1)],
        lambda e, x, y, z: [e(R.add(e(R.multiply(x, y)), e(R.exp(z))))],
    ),
    "channels": ([(3, 5, 7, 7), (5, 1, 1)], lambda e, x, y: [e(R.nn.relu(e(R.add(x, y))))]),
    "narrow": ([(1000, 3), (3,)], lambda e, x, y: [e(R.nn.relu(e(R.add(x, y))))]),
}


def shapes_of(name: str) -> tuple[list[tuple[int, ...]], list[str]]:
    return MOVES[name][0], [F32] * len(MOVES[name][0])
