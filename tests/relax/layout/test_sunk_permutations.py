# SPDX-License-Identifier: Apache-2.0
"""Transpositions sink behind reductions, so that fewer elements are transposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, draw, on_llvm
from tvm_stitch.relax.layout.sunk_permutations import SinkPermutations, divided
from tvm_stitch.relax.rewriting.contents import contents_of
from tvm_stitch.relax.rewriting.views import shape_of

Emit = Callable[[Any], Any]
LAST, SECOND = [0, 2, 3, 1], [0, 3, 1, 2]


def transposed(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """Return the shapes of all transpositions, in order."""
    return [tuple(shape_of(call)) for call in contents_of(mod["main"]).get("relax.permute_dims", ())]


def split_attention(emit: Emit, x: Any, scale: Any) -> Any:
    """Add up two groups of channels, of which each is scaled."""
    y = emit(R.nn.relu(x))
    y = emit(R.reshape(emit(R.permute_dims(y, SECOND)), [2, 2, 8, 5, 7]))
    wide = emit(R.astype(y, "float64"))
    mean = emit(R.mean(emit(R.sum(wide, 1)), [2, 3], keepdims=True))
    total = emit(R.sum(emit(R.multiply(wide, emit(R.astype(scale, "float64")))), 1))
    return R.permute_dims(emit(R.add(total, mean)), LAST)


def centred(emit: Emit, y: Any) -> Any:
    return R.subtract(y, emit(R.max(y, 1, True)))


def checked(body: Callable[..., Any], *specs: Any) -> tvm.IRModule:
    """Return the module after the pass, and check that it computes the same."""
    before = build(body, *specs)
    after = SinkPermutations(CHOICES)(before)
    inputs = draw(specs)
    for mine, wanted in zip(on_llvm(after, *inputs), on_llvm(before, *inputs), strict=True):
        np.testing.assert_allclose(mine, wanted, 1e-5, 1e-5)
    return after


def test_groups_of_channels() -> None:
    after = checked(split_attention, ((2, 5, 7, 16), "float32"), ((2, 2, 8, 1, 1), "float32"))
    assert not {(2, 16, 5, 7), (2, 2, 8, 5, 7)} & set(transposed(after))
    assert (2, 1, 1, 2, 8) in transposed(after), "the small operand is transposed"


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [[1], [2, 3], [0, 2], None])
@pytest.mark.parametrize("name", ["sum", "mean", "max"])
def test_reductions(name: str, axis: list[int] | None, keepdims: bool) -> None:
    def body(emit: Emit, x: Any) -> Any:
        y = emit(R.reshape(emit(R.permute_dims(x, SECOND)), [3, 2, 4, 4, 5]))
        return getattr(R, name)(y, axis, keepdims)

    after = checked(body, ((3, 4, 5, 8), "float32"))
    assert not {(3, 8, 4, 5), (3, 2, 4, 4, 5)} & set(transposed(after))


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_pools(name: str) -> None:
    def body(emit: Emit, x: Any) -> Any:
        pool = getattr(R.nn, name)
        return R.nn.relu(emit(pool(emit(R.permute_dims(x, SECOND)), [3, 3], [2, 2], [1, 1, 1, 1])))

    after = checked(body, ((2, 9, 11, 8), "float32"))
    assert transposed(after) == [(2, 8, 5, 6)]


def test_two_alike_transpositions_are_added() -> None:
    def body(emit: Emit, x: Any, y: Any) -> Any:
        both = [emit(R.reshape(emit(R.permute_dims(each, SECOND)), [2, 2, 3, 3, 4])) for each in (x, y)]
        return R.sum(emit(R.add(*both)), [1, 2])

    assert transposed(checked(body, *[((2, 3, 4, 6), "float32")] * 2)) == []


@pytest.mark.parametrize(
    "body",
    [
        lambda emit, x: R.nn.relu(emit(R.permute_dims(x, SECOND))),
        lambda emit, x: R.sum(emit(R.permute_dims(x, SECOND)), 1),
        lambda emit, x: R.sum(emit(R.reshape(emit(R.permute_dims(x, SECOND)), [2, 30, 6])), 1),
        lambda emit, x: R.nn.softmax(emit(R.permute_dims(x, SECOND)), 1),
        lambda emit, x: centred(emit, emit(R.permute_dims(x, SECOND))),
    ],
    ids=[
        "nothing is reduced",
        "rows are transposed as they are loaded",
        "the reshape joins axes",
        "a softmax is no reduction",
        "the tensor is used too",
    ],
)
def test_what_stays(body: Callable[..., Any]) -> None:
    mod = build(body, ((2, 5, 6, 6), "float32"))
    tvm.ir.assert_structural_equal(SinkPermutations(CHOICES)(mod), mod)


def test_a_large_operand_stays() -> None:
    def body(emit: Emit, x: Any, y: Any) -> Any:
        return R.sum(emit(R.add(emit(R.permute_dims(x, SECOND)), y)), 1)

    mod = build(body, ((2, 3, 4, 6), "float32"), ((2, 6, 3, 4), "float32"))
    tvm.ir.assert_structural_equal(SinkPermutations(CHOICES)(mod), mod)


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        ((2, 16, 5), (2, 2, 8, 5), [[2], [2, 8], [5]]),
        ((4, 6), (4, 6, 1), [[4], [6, 1]]),
        ((4, 6), (6, 4), None),
        ((4, 6), (24,), None),
        ((1, 6), (6,), None),
    ],
    ids=str,
)
def test_divided(before: tuple[int, ...], after: tuple[int, ...], groups: Any) -> None:
    assert divided(before, after) == groups
    assert groups is None or np.prod(before) == np.prod(after)
