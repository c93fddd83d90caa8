# SPDX-License-Identifier: Apache-2.0
"""Bounds: they hold correct results, exclude wrong ones, and admit both sides of a discontinuity."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from stitch_testing.reference.bounds import Bound, evaluate_bounds, violations
from tvm_stitch.testing.workloads import cases
from tvm_stitch.testing.workloads.case import Case

F32 = "float32"


def bounds_of(body: Callable[..., relax.Expr], *inputs: np.ndarray, half_arithmetic: bool = False) -> Bound:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(x.shape, str(x.dtype))) for i, x in enumerate(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            output = builder.emit_output(body(builder.emit, *params))
        builder.emit_func_output(output)
    (bound,) = evaluate_bounds(builder.get(), list(inputs), half_arithmetic=half_arithmetic)
    return bound


@pytest.mark.parametrize(
    "case", [c for c in cases.cases("test") if not c.matmuls], ids=lambda case: case.name
)
def test_stock_results_lie_inside(case: Case) -> None:
    mod, inputs = case.build(), case.inputs(np.random.default_rng(5))
    vm = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    result = vm["main"](*map(tvm.runtime.tensor, inputs))
    outputs = [t.numpy() for t in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]
    bounds = evaluate_bounds(mod, inputs, half_arithmetic=True)
    assert violations(outputs, bounds) == []
    spoiled = [x.copy() for x in outputs]
    spoiled[-1].reshape(-1)[3] = spoiled[-1].reshape(-1)[3] * 1.05 + 0.05
    assert len(violations(spoiled, bounds)) == 1


def test_a_product_may_be_rounded_before_the_sum_that_cancels_it() -> None:
    x = np.array([1 + 2**-12], F32)
    fused, rounded = np.array([2.0**-24], F32), np.array([0.0], F32)
    bound = bounds_of(lambda emit, x, y, z: R.ewise_fma(x, y, z), x, x, -(x * x))
    assert bound.value == fused and violations([fused, rounded], [bound, bound]) == []
    assert violations([np.array([2.0**-20], F32)], [bound]) != []


def test_one_lost_element_of_a_long_sum_is_seen() -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, (1, 5000)).astype(F32)
    bound = bounds_of(lambda emit, x: R.sum(x, axis=-1), x)
    lost = (x.astype(np.float64).sum() - x[0, 17]).astype(F32).reshape(1)
    sequential = np.add.accumulate(x[0])[-1:]
    assert violations([sequential], [bound]) == [] and violations([lost], [bound])


@pytest.mark.parametrize("value", [0.1, 0.7, 1.3])
def test_long_column_sums_of_a_repeated_value_drift(value: float) -> None:
    """Added one after the other, 40,000 equal numbers are off by more than roundings at random would be."""
    x = np.full((40_000, 3), value, F32)
    bound = bounds_of(lambda emit, x: R.sum(x, axis=0), x)
    mean = bounds_of(lambda emit, x: R.mean(x, axis=0), x)
    total = np.zeros(3, F32)
    for row in x:
        total += row
    exact = x.astype(np.float64).sum(0)
    assert violations([total], [bound]) == [] and violations([exact.astype(F32)], [bound]) == []
    assert violations([total / np.float32(40_000)], [mean]) == []
    assert violations([np.asarray(exact * 1.01, F32)], [bound])


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (2, 0, 1), (1, 2)])
def test_sums_in_any_order_lie_inside(axes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(axes))
    x = rng.uniform(-0.5, 1.5, (37, 40, 41)).astype(F32)
    bound = bounds_of(lambda emit, x: R.sum(x, axis=list(axes)), x)
    moved = np.moveaxis(x, axes, range(len(axes)))
    flat = moved.reshape(-1, *moved.shape[len(axes) :])
    for order in (flat, flat[::-1], flat[rng.permutation(len(flat))], np.sort(flat, axis=0)):
        assert violations([np.add.accumulate(order, axis=0)[-1]], [bound]) == []
    off = (flat.astype(np.float64).sum(0) * 0.999).astype(
        F32
    )  # one addition after the other may lose a few elements
    assert violations([off], [bound])


def test_half_sums_may_be_accumulated_in_half_only_on_request() -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, (1, 1500)).astype("float16")
    sequential = np.add.accumulate(x[0])[-1:].astype("float16")
    assert not violations(
        [sequential], [bounds_of(lambda emit, x: R.sum(x, axis=-1), x, half_arithmetic=True)]
    )
    assert violations([sequential], [bounds_of(lambda emit, x: R.sum(x, axis=-1), x)])


def test_close_comparisons_admit_both_results_and_clear_ones_do_not() -> None:
    x = np.array([0.1, 1.0, 2.0], F32)
    bound = bounds_of(lambda emit, x: R.greater(emit(R.multiply(x, x)), emit(R.exp(emit(R.log(x))))), x)
    assert list(bound.low) == [False, False, True] and list(bound.high) == [False, True, True]


def test_casts_near_a_boundary_admit_both_neighbours() -> None:
    x = np.array([0.5, 2.0], F32)
    third = relax.const(3.0, F32)
    bound = bounds_of(
        lambda emit, x: R.astype(emit(R.divide(emit(R.multiply(x, third)), relax.const(1.5, F32))), "int32"),
        x,
    )
    assert list(bound.low) == [0, 3] and list(bound.high) == [1, 4]


def test_turning_points_inside_an_interval_count() -> None:
    x = np.array([1.0], F32)
    bound = bounds_of(
        lambda emit, x: R.abs(emit(R.subtract(emit(R.exp(emit(R.log(x)))), relax.const(1.0, F32)))), x
    )
    assert bound.low[0] == 0.0 and 0 < bound.high[0] < 1e-4


def test_products_of_mixed_signs() -> None:
    x = np.array([[-1.5, 0.3, 2.0]], F32)
    bound = bounds_of(lambda emit, x: R.prod(emit(R.tanh(x)), axis=-1), x)
    exact = np.prod(np.tanh(x.astype(np.float64)))
    assert bound.low[0] < exact < bound.high[0] and bound.high[0] - bound.low[0] < 1e-4


def test_nan_shape_and_count_are_violations() -> None:
    x = np.array([1.0, 2.0], F32)
    bound = bounds_of(lambda emit, x: R.add(x, x), x)
    assert "out of bounds" in violations([np.array([2.0, np.nan], F32)], [bound])[0]
    assert "shape" in violations([np.array([2.0], F32)], [bound])[0]
    assert violations([], [bound]) == ["0 outputs, expected 1"]


def test_composite_operators_have_no_bounds() -> None:
    with pytest.raises(NotImplementedError, match="softmax"):
        bounds_of(lambda emit, x: R.nn.softmax(x), np.zeros((2, 2), F32))


def test_what_overflowed_may_become_finite_again() -> None:
    bound = bounds_of(
        lambda emit, x: emit(R.cos(emit(R.power(emit(R.exp(x)), relax.const(-1.5, F32))))),
        np.full((3,), 1e4, F32),
    )
    assert violations([np.ones(3, F32)], [bound]) == [] and violations([np.zeros(3, F32)], [bound])


def test_sums_of_infinities_have_bounds() -> None:
    """No bound is NaN: infinite sums are to be infinite, and the finite ones next to them right."""
    x = np.ones((2, 64), "int32")
    x[0] = 100_000

    def body(emit: Callable[..., relax.Expr], x: relax.Expr) -> relax.Expr:
        half = emit(R.astype(x, "float16"))
        return emit(R.sum(emit(R.astype(half, F32)), [1]))

    bound = bounds_of(body, x)
    assert not np.isnan(bound.low).any() and not np.isnan(bound.high).any()
    assert violations([np.array([np.inf, 64], F32)], [bound]) == []
    assert violations([np.array([np.inf, 63], F32)], [bound])
    assert violations([np.array([1.0, 64], F32)], [bound])
