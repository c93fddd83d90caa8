# SPDX-License-Identifier: Apache-2.0
"""Reductions along axes of symbolic extent: one kernel of one artifact, right at every length, on both targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from cuda_emulator import run_lowered
from cuda_emulator.lowering import lower
from stitch_testing.once import once
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import Spec, build, symbol
from tvm_stitch.config import StitchConfig
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING

F32 = "float32"
STRICT = StitchConfig(strict=True)
LENGTHS = (0, 1, 7, 31, 40, 1023, 1024, 1025, 4097)
"""Of rows: none, less than a vector, and both sides of the bounds between a GPU's variants."""
LONG = (8192, 8193, 8196, 33001)


@dataclass(frozen=True)
class Case:
    """A function of tensors whose shapes are made of the symbols n and m, and what it is in float64."""

    body: Callable[..., Any]
    specs: Callable[[Any, Any], Sequence[Spec]]
    reference: Callable[..., np.ndarray | None]


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True)) if x.size else x
    return e / e.sum(axis, keepdims=True)


def mean(x: np.ndarray, axes: Any) -> np.ndarray:
    return x.sum(axes, keepdims=True) / np.prod([x.shape[a] for a in axes])


def layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    centred = x - mean(x, (-1,))
    return centred / np.sqrt(mean(centred**2, (-1,)) + 1e-5) * gamma + beta


def scores(emit: Any, x: Any, mask: Any) -> Any:
    scaled = emit(R.multiply(x, relax.const(0.125, F32)))
    return R.nn.softmax(emit(R.add(scaled, mask)), axis=-1)


def normalized_channels(emit: Any, x: Any) -> Any:
    centred = emit(R.subtract(x, emit(R.mean(x, [0, 2], True))))
    return R.divide(centred, emit(R.sqrt(emit(R.mean(emit(R.multiply(centred, centred)), [0, 2], True)))))


def standardized(x: np.ndarray) -> np.ndarray:
    centred = x - mean(x, (0, 2))
    return centred / np.sqrt(mean(centred**2, (0, 2)))


CASES = {
    "softmax": Case(
        lambda emit, x: R.nn.softmax(x, axis=-1), lambda n, m: [((n, m), F32)], softmax
    ),
    "scores of keys in a cache": Case(
        scores, lambda n, m: [((n, 2, 3, m), F32), ((n, 1, 1, m), F32)],
        lambda x, mask: softmax(x * 0.125 + mask),
    ),
    "log-softmax": Case(
        lambda emit, x: R.nn.log_softmax(x, axis=-1), lambda n, m: [((n, m), F32)], lambda x: np.log(softmax(x))
    ),
    "mean": Case(lambda emit, x: R.mean(x, [1]), lambda n, m: [((n, m), F32)], lambda x: mean(x, (1,))[:, 0]),
    "layer norm": Case(
        lambda emit, x, g, b: R.nn.layer_norm(x, g, b, axes=[-1]),
        lambda n, m: [((n, m), F32), ((m,), F32), ((m,), F32)], layer_norm,
    ),
    "rms norm": Case(
        lambda emit, x, g: R.nn.rms_norm(x, g, axes=[-1]), lambda n, m: [((n, m), F32), ((m,), F32)],
        lambda x, g: x / np.sqrt(mean(x**2, (-1,)) + 1e-5) * g,
    ),
    "argmax": Case(
        lambda emit, x: R.argmax(x, 1), lambda n, m: [((n, m), F32)],
        lambda x: x.argmax(1) if x.shape[1] else None,
    ),
    "softmax along a middle axis": Case(
        lambda emit, x: R.nn.softmax(x, axis=1), lambda n, m: [((n, m, 8), F32)], lambda x: softmax(x, 1)
    ),
    "sums of columns": Case(
        lambda emit, x: R.sum(x, [0]), lambda n, m: [((m, 48), F32)], lambda x: x.sum(0)
    ),
    "sums of symbolic columns": Case(
        lambda emit, x: R.sum(x, [0]), lambda n, m: [((m, n), F32)], lambda x: x.sum(0)
    ),
    "a sum of everything": Case(
        lambda emit, x: R.sum(x), lambda n, m: [((n, m), F32)], lambda x: x.sum()
    ),
    "statistics of a symbolic batch": Case(
        normalized_channels, lambda n, m: [((m, 4, 6), F32)], standardized
    ),
    "a derived extent": Case(
        lambda emit, x: R.nn.softmax(emit(R.reshape(x, (3, x.ty.shape[0] * x.ty.shape[1]))), axis=-1),
        lambda n, m: [((n, m, 3), F32)], lambda x: softmax(x.reshape(3, x.shape[0] * x.shape[1])),
    ),
    "an extent and one": Case(
        lambda emit, x, y: R.nn.softmax(emit(R.concat([x, y], 1)), axis=-1),
        lambda n, m: [((n, m), F32), ((n, 1), F32)], lambda x, y: softmax(np.concatenate([x, y], 1)),
    ),
    "rows of two lengths": Case(
        lambda emit, x, y: R.add(emit(R.sum(x, [1])), emit(R.max(y, [1]))),
        lambda n, m: [((n, m), F32), ((n, 2 * m + 1), F32)], lambda x, y: x.sum(1) + y.max(1),
    ),
}  # fmt: skip
ROWS = (0, 1, 3)


def module(case: Case) -> tvm.IRModule:
    return build(case.body, *case.specs(symbol("n"), symbol("m")))


def draw(case: Case, n: int, m: int) -> list[np.ndarray]:
    rng = np.random.default_rng([n, m])
    return [rng.standard_normal(shape).astype(dtype) for shape, dtype in case.specs(n, m)]


def check(case: Case, inputs: Sequence[np.ndarray], got: np.ndarray, note: object) -> None:
    with np.errstate(all="ignore"):
        wanted = case.reference(*(x.astype("float64") for x in inputs))
    if wanted is None:  # NumPy has no value for it
        return
    assert got.shape == np.shape(wanted), note
    # The rounding of sums is relative to what is added up.
    scale = max(1.0, *(float(np.abs(x).sum()) ** 0.5 for x in inputs))
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6 * scale, err_msg=str(note))


@pytest.mark.parametrize("name", CASES)
def test_symbolic_rows_on_llvm(name: str) -> None:
    case = CASES[name]
    mod, run = module(case), once(pipeline("llvm", STRICT))
    assert count_kernels(mod, "llvm", run).total == 1
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=run), tvm.cpu())
    for n in ROWS:
        for m in (*LENGTHS, *LONG):
            inputs = draw(case, n, m)
            check(case, inputs, vm["main"](*map(tvm.runtime.tensor, inputs)).numpy(), (n, m))


@pytest.mark.parametrize("name", CASES)
def test_symbolic_rows_in_the_emulator(name: str) -> None:
    case, target = CASES[name], emulated_target()
    mod, run = module(case), once(pipeline(target, STRICT))
    assert count_kernels(mod, target, run).total == 1
    lowered = lower(mod, target, run, LOWERING)
    for m in (*LENGTHS, *LONG):
        for n in ROWS if m < 100 else ROWS[1:2]:
            inputs = draw(case, n, m)
            done = run_lowered(lowered, [x.copy() for x in inputs]).check()
            if any(x.size == 0 for x in inputs) and not done.launches:
                continue
            assert len(done.launches) == 1
            check(case, inputs, done.outputs[0], (n, m))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_rows_move_vectors_where_their_length_allows_it(dtype: str) -> None:
    target = emulated_target()
    run = pipeline(target, STRICT)
    mod = build(lambda emit, x: R.nn.softmax(x, axis=-1), ((symbol("n"), symbol("m")), dtype))
    lowered = lower(mod, target, run, LOWERING)
    for m in (8, 130, 136, 1000, 1001, 2048, 9000):
        x = np.random.default_rng(m).standard_normal((3, m)).astype(np.dtype(dtype))
        done = run_lowered(lowered, [x.copy()]).check()
        error = np.abs(done.outputs[0].astype("float64") - softmax(x.astype("float64"))).max()
        assert error < 2.0 ** (-7 if dtype == "bfloat16" else -10) * softmax(x.astype("float64")).max()
