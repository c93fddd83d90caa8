# SPDX-License-Identifier: Apache-2.0
"""Some sums may be taken relative to their warp's maximum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import relax
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, graph
from tvm_stitch.plan.iteration.alignment import align
from tvm_stitch.plan.iteration.loops import Keep, schedule
from tvm_stitch.plan.iteration.rescaled import exchanged_levels, rescaled_sums, with_fewest_exchanges

Body = Callable[..., Any]
X = ((8, 4096), "float32")
MASK = ((8, 4096), "bool")
SCALE = ((4096,), "float32")


def found(body: Body, *specs: Any, keep: Keep = Keep.LOADS) -> int:
    alignment = align(graph(build(body, *(specs or (X,)))), CHOICES)
    return len(rescaled_sums(alignment, schedule(alignment, keep)))


def shifted(emit: Any, x: Any) -> Any:
    return emit(R.exp(emit(R.subtract(x, emit(R.max(x, -1, True))))))


def total(emit: Any, x: Any) -> Any:
    return emit(R.sum(x, -1, True))


def softmax(emit: Any, x: Any) -> Any:
    e = shifted(emit, x)
    return [emit(R.divide(e, total(emit, e)))]


def log_sum(emit: Any, x: Any) -> Any:
    return [emit(R.log(total(emit, shifted(emit, x))))]


def weighted(emit: Any, x: Any, scale: Any) -> Any:
    return [total(emit, emit(R.multiply(emit(R.multiply(shifted(emit, x), scale)), x)))]


def halved(emit: Any, x: Any, scale: Any) -> Any:
    return [total(emit, emit(R.divide(shifted(emit, x), scale)))]


def masked(emit: Any, x: Any, mask: Any) -> Any:
    return [total(emit, emit(R.multiply(emit(R.astype(mask, "float32")), shifted(emit, x))))]


def either(emit: Any, x: Any, mask: Any) -> Any:
    e = shifted(emit, x)
    return [total(emit, emit(R.where(mask, e, emit(R.multiply(e, x)))))]


def scores(emit: Any, x: Any) -> Any:
    """Subtract the maximum of a value that the kernel computes."""
    return softmax(emit, emit(R.multiply(x, relax.const(0.125, "float32"))))


def widened(emit: Any, x: Any) -> Any:
    y = emit(R.astype(x, "float32"))
    m = emit(R.astype(emit(R.max(x, -1, True)), "float32"))
    return [total(emit, emit(R.exp(emit(R.subtract(y, m)))))]


@pytest.mark.parametrize(
    ("body", "specs"),
    [
        (softmax, [X]),
        (log_sum, [X]),
        (weighted, [X, SCALE]),
        (halved, [X, SCALE]),
        (masked, [X, MASK]),
        (either, [X, MASK]),
        (scores, [X]),
        (log_sum, [(X[0], "float64")]),
        (widened, [(X[0], "float16")]),
    ],
)
def test_sums_that_are_rescaled(body: Body, specs: list[Any]) -> None:
    assert found(body, *specs) == 1


def not_an_exponential(emit: Any, x: Any) -> Any:
    return [total(emit, emit(R.subtract(x, emit(R.max(x, -1, True)))))]


def minimum(emit: Any, x: Any) -> Any:
    return [total(emit, emit(R.exp(emit(R.subtract(x, emit(R.min(x, -1, True)))))))]


def of_another_operand(emit: Any, x: Any) -> Any:
    """Relative to a warp's own maximum of |x| it might overflow where relative to the row's it does not."""
    m = emit(R.max(emit(R.abs(x)), -1, True))
    return [total(emit, emit(R.exp(emit(R.subtract(emit(R.multiply(x, x)), m)))))]


def swapped(emit: Any, x: Any) -> Any:
    return [total(emit, emit(R.exp(emit(R.subtract(emit(R.max(x, -1, True)), x)))))]


def squared(emit: Any, x: Any) -> Any:
    e = shifted(emit, x)
    return [total(emit, emit(R.multiply(e, e)))]


def plus_one(emit: Any, x: Any) -> Any:
    return [total(emit, emit(R.add(shifted(emit, x), relax.const(1.0, "float32"))))]


def chosen_by_it(emit: Any, x: Any) -> Any:
    m = emit(R.max(x, -1, True))
    zero = relax.const(0.0, "float32")
    return [total(emit, emit(R.where(emit(R.equal(x, m)), shifted(emit, x), zero)))]


def rounded(emit: Any, x: Any) -> Any:
    """Round the difference explicitly: that is not the rounding of another difference."""
    d = emit(R.astype(emit(R.subtract(x, emit(R.max(x, -1, True)))), "float16"))
    return [total(emit, emit(R.exp(emit(R.astype(d, "float32")))))]


def written(emit: Any, x: Any) -> Any:
    """Return the exponential too: the stored values must be the row's."""
    e = shifted(emit, x)
    return [e, total(emit, e)]


def beside_a_sum_that_waits(emit: Any, x: Any) -> Any:
    m = emit(R.max(x, -1, True))
    e = emit(R.exp(emit(R.subtract(x, m))))
    return [total(emit, e), total(emit, emit(R.multiply(x, m)))]


def maximum_of_it(emit: Any, x: Any) -> Any:
    return [emit(R.max(shifted(emit, x), -1, True))]


@pytest.mark.parametrize(
    "body",
    [
        not_an_exponential,
        minimum,
        of_another_operand,
        swapped,
        squared,
        plus_one,
        chosen_by_it,
        rounded,
        written,
        beside_a_sum_that_waits,
        maximum_of_it,
    ],
)
def test_sums_that_wait(body: Body) -> None:
    assert found(body) == 0


def test_a_kept_exponential_is_the_rows() -> None:
    """It is read again behind the sum. If a row is exchanged, it is computed again instead."""
    alignment = align(graph(build(softmax, X)), CHOICES)
    kept = schedule(alignment)
    assert kept.kept_values and not rescaled_sums(alignment, kept)
    assert exchanged_levels(alignment, kept) == 2
    fewest = with_fewest_exchanges(alignment, kept)
    assert not fewest.kept_values and exchanged_levels(alignment, fewest) == 1


def test_costly_values_are_not_computed_again() -> None:
    def body(emit: Any, x: Any) -> Any:
        return softmax(emit, emit(R.erf(x)))

    alignment = align(graph(build(body, X)), CHOICES)
    kept = schedule(alignment)
    assert with_fewest_exchanges(alignment, kept) is kept
