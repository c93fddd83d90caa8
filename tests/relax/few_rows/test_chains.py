# SPDX-License-Identifier: Apache-2.0
"""Products that read each other's results are phases of one kernel, which hand over rounded elements, not sums."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import tvm_stitch.relax
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tvm_stitch.plan.gpu.phases.partition import Partition, _Partitioner

TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-2}


def block(hidden: int, inner: int, dtype: str, rows: int = 1) -> tvm.IRModule:
    """Return what lies between two attentions of a decoder: four products, two norms, a gate and two residuals."""
    builder = relax.BlockBuilder()
    shapes = {
        "x": (1, rows, hidden),
        "out": (hidden, hidden),
        "gain": (hidden,),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "next_gain": (hidden,),
        "qkv": (3 * hidden, hidden),
    }
    params = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in shapes.items()]
    x, out, gain, gate_up, down, next_gain, qkv = params
    with builder.function("main", params):
        with builder.dataflow():
            emit = builder.emit

            def linear(value: relax.Expr, weight: relax.Expr) -> relax.Expr:
                return emit(op.matmul(value, op.permute_dims(weight)))

            def norm(value: relax.Expr, by: relax.Expr) -> relax.Expr:
                return emit(op.nn.rms_norm(value, by, axes=[-1], epsilon=1e-5))

            state = emit(op.add(x, linear(x, out)))
            halves = emit(op.split(linear(norm(state, gain), gate_up), 2, axis=-1))
            gated = emit(op.multiply(op.nn.silu(halves[0]), halves[1]))
            state = emit(op.add(state, linear(gated, down)))
            result = builder.emit_output(relax.Tuple([state, linear(norm(state, next_gain), qkv)]))
        builder.emit_func_output(result)
    return builder.get()


def in_float64(arrays: list[np.ndarray]) -> list[np.ndarray]:
    x, out, gain, gate_up, down, next_gain, qkv = (a.astype("float64") for a in arrays)

    def norm(value: np.ndarray, by: np.ndarray) -> np.ndarray:
        return value / np.sqrt((value**2).mean(-1, keepdims=True) + 1e-5) * by

    state = x + x @ out.T
    gate, up = np.split(norm(state, gain) @ gate_up.T, 2, -1)
    state = state + gate / (1 + np.exp(-gate)) * up @ down.T
    return [state, norm(state, next_gain) @ qkv.T]


@pytest.mark.parametrize(("hidden", "inner", "dtype"), [(128, 192, "float32"), (256, 512, "bfloat16")])
def test_four_products_are_one_kernel(
    hidden: int, inner: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Partition] = []
    run = _Partitioner.run

    def recorded(self: _Partitioner) -> Partition:
        found.append(run(self))
        return found[-1]

    monkeypatch.setattr(_Partitioner, "run", recorded)
    mod, target = block(hidden, inner, dtype), emulated_target()
    rng = np.random.default_rng(0)
    arrays = [
        (rng.standard_normal(shape) * (shape[-1] ** -0.5 if len(shape) == 2 else 1.0)).astype(dtype)
        for shape in ([int(e) for e in p.ty.shape] for p in mod["main"].params)
    ]
    emulated = run_cuda(mod, arrays, relax_pipeline=tvm_stitch.relax.pipeline(target), target=target).check()
    assert len(emulated.launches) == 1
    for mine, theirs in zip(emulated.outputs, in_float64(arrays), strict=True):
        error = np.abs(mine.astype("float64") - theirs).max() / np.abs(theirs).max()
        assert error < TOLERANCE[dtype]
    crossing = found[-1].crossing.stored
    assert all(not t.producer.is_reduce for t in crossing), (
        "a later phase would pick an element out of four sums"
    )
    assert {int(t.size) for t in crossing} == {hidden, inner}
    assert len(found[-1].phases) == 4
