# SPDX-License-Identifier: Apache-2.0
"""One-pass moments: which graphs have them, what the rewrite makes, and its error on hostile data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

from stitch_testing.reference.graph_eval import evaluate_graph
from stitch_testing.validate import validate
from tests.graph.helpers import build, check_emulated, draw, graph, single, symbol
from tvm_stitch import compat
from tvm_stitch.graph.ir import Operator, StitchGraph
from tvm_stitch.graph.reader import read
from tvm_stitch.graph.rewrite import candidates, with_one_pass_variance
from tvm_stitch.graph.rewrite.build import new_tensor
from tvm_stitch.graph.rewrite.one_pass_variance import SAMPLES, _is_reciprocal, _Shifted

F32, F16 = "float32", "float16"
EPSILON = 2.0**-24
Body = Callable[..., Any]
Spec = tuple[Sequence[Any], str]


def c(value: float, dtype: str = F32) -> relax.Expr:
    return relax.const(value, dtype)


def batch_norm(emit: Any, x: Any, *rest: Any) -> Any:
    made = emit(R.nn.batch_norm(x, *rest, axis=1, training=True))
    return [made[0], made[1], made[2]]


def normalised(axes: list[int], square: Callable[[Any, Any], Any]) -> Body:
    def body(emit: Any, x: Any) -> Any:
        d = emit(R.subtract(x, emit(R.mean(x, axes, True))))
        v = emit(R.mean(emit(square(emit, d)), axes, True))
        return [R.multiply(d, emit(R.rsqrt(emit(R.add(v, c(1e-5))))))]

    return body


def half_input(emit: Any, x: Any) -> Any:
    wide = emit(R.astype(x, F32))
    mean = emit(R.mean(wide, -1, True))
    return [R.mean(emit(R.square(emit(R.subtract(wide, mean)))), -1), R.squeeze(mean, -1)]


def reciprocal(emit: Any, x: Any) -> Any:
    total = emit(R.multiply(emit(R.sum(x, [0])), c(1 / 48)))
    d = emit(R.subtract(emit(R.broadcast_to(emit(R.reshape(total, [1, 20])), [48, 20])), x))
    return [R.sum(emit(R.multiply(d, d)), [0])]


def written_twice(emit: Any, x: Any) -> Any:
    mean = emit(R.mean(x, 0, True))
    a, b = emit(R.subtract(x, mean)), emit(R.subtract(x, mean))
    return [R.sum(emit(R.multiply(a, b)), [0])]


def of_an_expression(emit: Any, x: Any, y: Any) -> Any:
    f = emit(R.nn.relu(emit(R.add(x, y))))
    return [R.variance(f, -1), f]


def across(emit: Any, x: Any) -> Any:
    """Transpose the result of the first reduction before it is subtracted."""
    t = emit(R.permute_dims(emit(R.mean(x, [1], True)), [0, 1, 2]))
    return [R.sum(emit(R.square(emit(R.subtract(x, t)))), [1])]


MERGED: dict[str, tuple[Body, Sequence[Spec]]] = {
    "batch norm": (batch_norm, [((4, 8, 5, 5), F32)] + [((8,), F32)] * 4),
    "variance of columns": (lambda emit, x: R.variance(x, [0]), [((64, 8), F32)]),
    "variance of rows": (lambda emit, x: R.variance(x, [-1]), [((3, 4, 50), F32)]),
    "variance of all": (lambda emit, x: R.variance(x), [((9, 50), F32)]),
    "deviation": (lambda emit, x: R.std(x, [0, 2]), [((4, 8, 25), F32)]),
    "layer norm": (
        lambda emit, x, g, b: R.nn.layer_norm(x, g, b, axes=[-1]),
        [((6, 100), F32), ((100,), F32), ((100,), F32)],
    ),
    "layer norm over two axes": (
        lambda emit, x, g, b: R.nn.layer_norm(x, g, b, axes=[-2, -1]),
        [((6, 7, 10), F32), ((7, 10), F32), ((7, 10), F32)],
    ),
    "square": (normalised([-1], lambda emit, d: R.square(d)), [((6, 40), F32)]),
    "power": (normalised([0], lambda emit, d: R.power(d, c(2.0))), [((60, 8), F32)]),
    "product": (normalised([0, 1], lambda emit, d: R.multiply(d, d)), [((6, 7, 8), F32)]),
    "half input": (half_input, [((6, 70), F16)]),
    "half": (lambda emit, x: R.variance(x, [-1]), [((6, 70), F16)]),
    "reciprocal, subtracted the other way round": (reciprocal, [((48, 20), F32)]),
    "written twice": (written_twice, [((48, 20), F32)]),
    "of an expression": (of_an_expression, [((6, 40), F32), ((6, 40), F32)]),
    "middle axis": (across, [((6, 40, 5), F32)]),
    "shorter than the samples": (lambda emit, x: R.variance(x, [-1]), [((6, 5), F32)]),
    "two elements": (lambda emit, x: R.variance(x, [-1]), [((6, 2), F32)]),
    "float64": (lambda emit, x: R.variance(x, [-1]), [((6, 70), "float64")]),
}


def made(name: str) -> tuple[StitchGraph, Sequence[Spec]]:
    body, specs = MERGED[name]
    found = single(body, *specs) if body is batch_norm else graph(build(body, *specs))
    return found, specs


def below(op: Operator) -> set[Operator]:
    """Return the operators whose results an operator depends on."""
    found: set[Operator] = set()
    pending = [op]
    while pending:
        for t in pending.pop().inputs:
            if t.producer is not None and t.producer not in found:
                found.add(t.producer)
                pending.append(t.producer)
    return found


@pytest.mark.parametrize("name", MERGED)
def test_both_sums_are_independent_and_right(name: str) -> None:
    found, specs = made(name)
    before = str(found)
    (pair,) = candidates(found)
    assert pair.total in below(pair.squares)
    merged = with_one_pass_variance(found)
    validate(merged)
    validate(found)
    assert str(found) == before
    sums = [op for op in merged.reduces if op.name.endswith(("_shifted", "_squares", "_plain"))]
    assert len(sums) in (2, 3) and not any(a in below(b) for a in sums for b in sums if a is not b)
    assert not candidates(merged)
    assert len([op for op in merged.reduces if op not in sums]) == 1  # the samples
    arrays = draw(specs, low=0.5)
    expected = evaluate_graph(found, arrays)
    for a, b in zip(evaluate_graph(merged, arrays), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
    relative = {F16: 2e-3}.get(merged.outputs[0].dtype, 1e-5)
    for a, b in zip(evaluate_graph(merged, arrays, exact=False), expected, strict=True):
        np.testing.assert_allclose(a.astype("float64"), b, rtol=relative, atol=relative)


@pytest.mark.parametrize("name", ["batch norm", "of an expression", "half input"])
def test_samples_are_read_like_the_elements(name: str) -> None:
    """The shift depends on few elements: a reduction of SAMPLES points for every result."""
    merged = with_one_pass_variance(made(name)[0])
    (samples,) = [op for op in merged.reduces if op.name.endswith("_samples")]
    assert [a.extent for a in samples.reduce] == [SAMPLES]
    (sums,) = [op for op in merged.reduces if op.name.endswith("_shifted")]
    assert {t.name for t in samples.inputs} <= {t.name for t in sums.inputs}


def mean_of(divisor: float, other: bool = False, axes: int = -1) -> Body:
    def body(emit: Any, x: Any, y: Any) -> Any:
        mean = emit(R.divide(emit(R.sum(x, axes, True)), c(divisor)))
        return [R.sum(emit(R.square(emit(R.subtract(y if other else x, mean)))), -1)]

    return body


PAIR = [((8, 8), F32), ((8, 8), F32)]
DECLINED: dict[str, Body] = {
    "another divisor": mean_of(7.0),
    "another tensor": mean_of(8.0, other=True),
    "other axes": mean_of(8.0, axes=0),
    "cubes": lambda emit, x, y: R.sum(
        emit(R.power(emit(R.subtract(x, emit(R.mean(x, -1, True)))), c(3.0))), -1
    ),
    "magnitudes": lambda emit, x, y: R.sum(emit(R.abs(emit(R.subtract(x, emit(R.mean(x, -1, True)))))), -1),
    "the greatest square": lambda emit, x, y: R.max(
        emit(R.square(emit(R.subtract(x, emit(R.mean(x, -1, True)))))), -1
    ),
    "the greatest subtracted": lambda emit, x, y: R.sum(
        emit(R.square(emit(R.subtract(x, emit(R.max(x, -1, True)))))), -1
    ),
    "another row's mean": lambda emit, x, y: R.sum(
        emit(R.square(emit(R.subtract(x, emit(R.flip(emit(R.mean(x, -1, True)), 0)))))), -1
    ),
    "the mean transposed": lambda emit, x, y: R.sum(
        emit(R.square(emit(R.subtract(x, emit(R.permute_dims(emit(R.mean(x, -1, True)))))))), -1
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_other_chains_are_left_alone(name: str) -> None:
    from tests.plan.iteration.test_alignment import composed

    op_graph = composed(lambda emit, *xs: [DECLINED[name](emit, *xs)], *PAIR)
    assert len(op_graph.reduces) == 2
    assert candidates(op_graph) == [] and with_one_pass_variance(op_graph) is op_graph


def test_rows_may_be_symbolic_reduced_axes_not() -> None:
    n = symbol()
    op_graph = graph(build(lambda emit, x: R.variance(x, [-1]), ((n, 40), F32)))
    merged = with_one_pass_variance(op_graph)
    validate(merged)
    assert merged is not op_graph and len(merged.reduces) == 3
    columns = single(lambda emit, x: R.variance(x, [0]), ((n, 40), F32))
    assert candidates(columns) == []


def test_the_sum_itself_remains_for_who_needs_it() -> None:
    def body(emit: Any, x: Any) -> Any:
        total = emit(R.sum(x, -1, True))
        d = emit(R.subtract(x, emit(R.divide(total, c(40.0)))))
        return [R.squeeze(total, -1), R.sum(emit(R.multiply(d, d)), -1)]

    op_graph = graph(build(body, ((6, 40), F32)))
    merged = with_one_pass_variance(op_graph)
    validate(merged)
    (x,) = draw([((6, 40), F32)], low=1.0)
    for a, b in zip(evaluate_graph(merged, [x]), evaluate_graph(op_graph, [x]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_chosen_pairs_only() -> None:
    """Two normalisations in a row: each can be rewritten alone, or both."""

    def body(emit: Any, x: Any) -> Any:
        for _ in range(2):
            d = emit(R.subtract(x, emit(R.mean(x, -1, True))))
            v = emit(R.mean(emit(R.multiply(d, d)), -1, True))
            x = emit(R.multiply(d, emit(R.rsqrt(emit(R.add(v, c(1e-3)))))))
        return [R.exp(x)]

    op_graph = graph(build(body, ((6, 40), F32)))
    pairs = candidates(op_graph)
    assert len(pairs) == 2
    arrays = draw([((6, 40), F32)], low=0.5)
    (expected,) = evaluate_graph(op_graph, arrays)
    for chosen in ([pairs[0]], [pairs[1]], pairs):
        merged = with_one_pass_variance(op_graph, chosen)
        validate(merged)
        assert len(merged.reduces) == 4 + 2 * len(chosen)
        np.testing.assert_allclose(evaluate_graph(merged, arrays)[0], expected, rtol=1e-10, atol=1e-12)
    assert with_one_pass_variance(op_graph, []) is op_graph


# -- error ------------------------------------------------------------------------------------------------------------


def moments_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of rows in working precision, after the rewrite."""

    dtype = str(x.dtype)

    def explicit(emit: Any, t: Any) -> Any:
        n = c(float(x.shape[1]), dtype)
        mean = emit(R.divide(emit(R.sum(t, -1, True)), n))
        d = emit(R.subtract(t, mean))
        return [R.squeeze(mean, -1), R.divide(emit(R.sum(emit(R.multiply(d, d)), -1)), n)]

    merged = with_one_pass_variance(graph(build(explicit, (x.shape, dtype))))
    assert any(op.name.endswith("_squares") for op in merged.operators)
    mean, variance = evaluate_graph(merged, [x], exact=False)
    return mean, variance


def worst(x: np.ndarray) -> float:
    """Return the greatest relative error of a row's variance."""
    exact = x.astype("float64").var(-1)
    return float(np.max(np.abs(moments_of(x)[1] - exact) / exact))


def test_a_mean_far_from_zero() -> None:
    """Unshifted squares of 1e4 +- 1e-2 hold no digit of the variance in float32."""
    x = np.random.default_rng(0).normal(1e4, 1e-2, (20, 4096)).astype(F32)
    exact = x.astype("float64").var(-1)
    naive = (x * x).mean(-1, dtype=F32) - x.mean(-1, dtype=F32) ** 2
    assert np.max(np.abs(naive - exact) / exact) > 10
    # Added one by one, rounding errors of n sums grow as n at worst.
    assert worst(x) < 4096 * EPSILON
    np.testing.assert_allclose(moments_of(x)[0], x.astype("float64").mean(-1), rtol=2 * EPSILON)


@pytest.mark.parametrize("length", [33, 1000, 16384])
@pytest.mark.parametrize("outlier", [1e2, 1e4, 1e7])
def test_an_outlier_among_the_samples(length: int, outlier: float) -> None:
    x = np.random.default_rng(1).normal(0, 1, (8, length)).astype(F32)
    x[:, 0] = outlier
    # Added one by one, equal terms are rounded the same way again and again: g is n.
    assert worst(x) < length * EPSILON * (1 + 2 * length / SAMPLES**2)


def test_nothing_but_the_samples_deviates() -> None:
    """The very worst: n/J times the error of a sum."""
    length = 2048
    x = np.full((1, length), 3.0, F32)
    x[:, np.arange(SAMPLES) * ((length - 1) // (SAMPLES - 1))] = 1e4
    assert worst(x) < length * EPSILON * (1 + 2 * length / SAMPLES)


@pytest.mark.parametrize("value", [0.0, 1e4, -1 / 3, 3.0e-39, 1e30, 0.1])
@pytest.mark.parametrize("length", [1, 2, 7, 31, 32, 33, 1000])
def test_constants_have_no_variance(value: float, length: int) -> None:
    mean, variance = moments_of(np.full((3, length), value, F32))
    assert (variance == 0).all() and (mean == np.float32(value)).all()


@pytest.mark.parametrize("dtype", [F16, "bfloat16"])
def test_half_types_accumulate_in_float32(dtype: str) -> None:
    """4096 squares of 100 overflow float16, and 4096 terms would round to nothing in either type."""
    x = np.random.default_rng(2).normal(300, 100, (4, 4096)).astype(np.dtype(dtype))
    mean, variance = moments_of(x)
    wide = x.astype("float64")
    relative = {F16: 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    np.testing.assert_allclose(mean.astype("float64"), wide.mean(-1), rtol=relative)
    np.testing.assert_allclose(variance.astype("float64"), wide.var(-1), rtol=relative)


@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33])
def test_few_elements(length: int) -> None:
    x = np.random.default_rng(3).normal(5, 2, (10, length)).astype(F32)
    mean, variance = moments_of(x)
    np.testing.assert_allclose(variance, x.astype("float64").var(-1), rtol=64 * EPSILON, atol=1e-12)
    np.testing.assert_allclose(mean, x.astype("float64").mean(-1), rtol=8 * EPSILON)


@pytest.mark.parametrize("at", [0, 1, 99])
def test_nan_and_infinity_are_not_lost(at: int) -> None:
    x = np.random.default_rng(4).normal(0, 1, (3, 100)).astype(F32)
    x[0, at], x[1, at] = np.nan, np.inf
    mean, variance = moments_of(x)
    assert np.isnan(mean[0]) and np.isnan(variance[0])
    assert np.isposinf(mean[1]) and not np.isfinite(variance[1])
    assert np.isfinite(mean[2]) and np.isfinite(variance[2])


@pytest.mark.parametrize("outlier", [1e6, -1e6, 2e37, -3e38])
@pytest.mark.parametrize("at", [0, 1, 3, 99])
def test_a_mean_keeps_its_digits_beside_an_outlier(at: int, outlier: float) -> None:
    """Also where the shift holds the outlier, of which it is a 32nd part."""
    x = np.random.default_rng(7).uniform(0, 1, (3, 100)).astype(F32)
    x[:, at] = outlier
    mean, _ = moments_of(x)
    np.testing.assert_allclose(mean, x.astype("float64").mean(-1), rtol=32 * EPSILON)


def test_squares_that_overflow_are_infinite() -> None:
    """As the sum of squared deviations is: normalised values are then 0, not NaN."""
    x = (np.random.default_rng(5).normal(0, 1, (3, 100)) * 1e25).astype(F32)
    mean, variance = moments_of(x)
    assert np.isposinf(variance).all() and np.isfinite(mean).all()


def test_a_period_of_the_data_is_sampled_at_several_places() -> None:
    """Images with a border: the shift must not come from border elements only."""
    x = np.random.default_rng(6).normal(0, 1, (2, 64, 64, 32)).astype(F32)
    x[:, :, 0] = 1e3
    merged = with_one_pass_variance(graph(build(lambda emit, t: R.variance(t, [1, 2, 3]), (x.shape, F32))))
    (samples,) = [op for op in merged.reduces if op.name.endswith("_samples")]
    tensor = samples.output
    merged.outputs.append(tensor)
    shift = x.reshape(2, -1)[:, 0] + evaluate_graph(merged, [x])[1].reshape(2)
    assert (np.abs(shift - x.mean((1, 2, 3))) < 200).all()


KERNELS: dict[str, tuple[Body, Spec]] = {
    "rows": (normalised([-1], lambda emit, d: R.square(d)), ((6, 200), F32)),
    "columns": (normalised([0], lambda emit, d: R.multiply(d, d)), ((70, 24), F32)),
    "long half rows": (half_input, ((3, 3000), F16)),
    "fewer than the samples": (normalised([-1], lambda emit, d: R.square(d)), ((50, 7), F32)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_rewritten_graphs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned and emitted like any graph: the new operators keep to what the reader makes."""
    import tvm_stitch.relax.stitch.schedule_stitch_ops as scheduling

    merged: list[StitchGraph] = []

    def rewritten(func: Any, at: str) -> StitchGraph:
        merged.append(with_one_pass_variance(read(func, at)))
        return merged[-1]

    monkeypatch.setattr(scheduling, "read", rewritten)
    body, spec = KERNELS[name]
    check_emulated(build(body, spec), draw([spec], low=90.0, high=110.0))
    assert any(op.name.endswith("_squares") for op in merged[0].operators)


@pytest.mark.parametrize(("rest", "kept"), [(-1e-3, 0.0), (0.0, 0.0), (2.5, 2.5)])
def test_a_variance_that_rounds_below_zero_is_zero(rest: float, kept: float) -> None:
    """Only sums of very many elements round that far, so the expression itself is looked at."""
    tensors = [new_tensor(name, (), F32) for name in ("shift", "sum", "squares", "plain", "mean")]
    clamped = _Shifted(1000, *tensors).clamped(compat.const(rest, F32), [])
    assert compat.kind(clamped) == "Select"  # of an infinite sum, which is kept
    assert float(compat.Analyzer().simplify(clamped.false_value).value) == kept


def test_a_factor_is_the_reciprocal_only_if_it_is_exactly_that() -> None:
    exact = 1 / 1000
    assert _is_reciprocal(exact, 1000, F32) and _is_reciprocal(float(np.float32(exact)), 1000, F32)
    for wrong in (exact * (1 + 2.0**-20), exact * (1 - 2.0**-20), 1 / 999, 1 / 1001):
        assert not _is_reciprocal(wrong, 1000, F32)
