# SPDX-License-Identifier: Apache-2.0
"""A view has the elements of what it is a view of, at the strides that it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch.graph.extent import same
from tvm_stitch.relax.rewriting.views import View, views

CHAINS: dict[
    str, tuple[tuple[int, ...], Callable[[Any, Any], Any], Callable[[np.ndarray], np.ndarray], int]
] = {
    "transpose": ((3, 4), lambda e, x: R.permute_dims(x), lambda x: x.T, 2),
    "heads": (
        (2, 5, 12),
        lambda e, x: R.permute_dims(e(R.reshape(x, (2, 5, 3, 4))), [0, 2, 1, 3]),
        lambda x: x.reshape(2, 5, 3, 4).transpose(0, 2, 1, 3),
        3,
    ),
    "a split of what is permuted": (
        (6, 4),
        lambda e, x: R.reshape(e(R.permute_dims(x)), (4, 2, 3)),
        lambda x: x.T.reshape(4, 2, 3),
        3,
    ),
    "broadcast": (
        (1, 4),
        lambda e, x: R.broadcast_to(x, (3, 5, 4)),
        lambda x: np.broadcast_to(x, (3, 5, 4)),
        2,
    ),
    "axes of one element": (
        (3, 1, 4),
        lambda e, x: R.expand_dims(e(R.squeeze(x, 1)), [0, 2]),
        lambda x: x.reshape(1, 3, 1, 4),
        3,
    ),
    "no view": ((3, 4), lambda e, x: R.permute_dims(e(R.exp(x))), lambda x: x.T, 2),
}


def chain(mod: Any) -> list[View]:
    """Return the views that main returns."""
    values = dict(relax.analysis.get_var2val(mod["main"]).items())

    def definition(value: Any) -> Any:
        found = values.get(value)
        while isinstance(found, relax.Var):
            found = values.get(found)
        return found if isinstance(found, relax.Call) else None

    return list(views(mod["main"].body.body, definition))


@pytest.mark.parametrize("name", CHAINS)
def test_views_have_the_elements_of_their_values(name: str) -> None:
    shape, body, expected, count = CHAINS[name]
    found = chain(build(lambda emit, x: emit(body(emit, x)), (shape, "float32")))
    assert len(found) == count
    array = np.arange(np.prod(shape), dtype="int64").reshape(shape)
    view = found[-1]
    assert view.extents == expected(array).shape
    if count > 1:
        strides = [8 * int(s) for s in view.strides]
        made = np.lib.stride_tricks.as_strided(array.reshape(-1), view.extents, strides)
        np.testing.assert_array_equal(made, expected(array))


def test_rows_joined_across_a_transpose_are_a_copy() -> None:
    mod = build(
        lambda emit, x: emit(R.reshape(emit(R.permute_dims(x, [1, 0, 2])), (6, 4))), ((2, 3, 4), "float32")
    )
    found = chain(mod)
    assert len(found) == 2 and not found[-1].value.same_as(mod["main"].params[0])
    assert found[-1].strides == (4, 1)


def test_symbolic_extents() -> None:
    n = symbol()
    found = chain(
        build(
            lambda emit, x: emit(R.permute_dims(emit(R.reshape(x, (n, 5, 3, 4))), [0, 2, 3, 1])),
            ((n, 5, 12), "float32"),
        )
    )
    assert len(found) == 3 and found[-1].strides == (60, 4, 1, 12)
    assert same(found[-1].extents[0], n)
