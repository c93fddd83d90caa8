# SPDX-License-Identifier: Apache-2.0
"""Query heads that share keys become queries, wherever they are rows at even distances."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_stitch.compute.attention import Attention, Operand, with_heads_as_queries

KEYS = Operand((2, 3, 50, 16), "float32", 0, (3 * 50 * 16, 50 * 16, 0, 16))


def attention(queries: int, inner: bool = False) -> Attention:
    """Attention of 2 x 3 heads of keys, for four query heads each.

    Queries are <batch, head, query, element>, or <batch, query, head, element> if ``inner`` is set.
    """
    row = 12 * 16 if inner else 16
    head = 16 if inner else queries * 16
    data = Operand((2, 12, queries, 16), "float32", 0, (12 * queries * 16, 4 * head, head, row))
    return Attention((2, 3, 4), queries, 50, 16, 0.25, data, KEYS, KEYS, data)


@pytest.mark.parametrize("queries", [1, 5])
def test_heads_with_the_same_keys_are_queries(queries: int) -> None:
    found = with_heads_as_queries(attention(queries))
    assert (found.leading, found.queries) == ((2, 3, 1), 4 * queries)
    assert found.q.strides == found.out.strides == (12 * queries * 16, 4 * queries * 16, 0, 16)
    assert (found.k, found.v) == (KEYS, KEYS)


def test_a_single_query_lies_evenly_in_any_order() -> None:
    assert with_heads_as_queries(attention(1, inner=True)).q.strides == (12 * 16, 4 * 16, 0, 16)
    assert with_heads_as_queries(attention(2, inner=True)) == attention(2, inner=True)


def test_heads_with_keys_of_their_own_stay_apart() -> None:
    own = Operand((2, 12, 50, 16), "float32", 0, (12 * 50 * 16, 4 * 50 * 16, 50 * 16, 16))
    kept = replace(attention(1), v=own)
    assert with_heads_as_queries(kept) is kept


def test_queries_that_see_different_keys_stay_apart() -> None:
    several, one = replace(attention(5), causal=45), replace(attention(1), causal=48)
    assert with_heads_as_queries(several) is several
    assert with_heads_as_queries(one) is one
    assert (
        with_heads_as_queries(replace(attention(1), causal=49)).queries == 4
    )  # the last query sees all keys


def test_masks_are_joined_too() -> None:
    alike = Operand((2, 1, 1, 50), "float32", 0, (50, 0, 0, 0, 1))
    found = with_heads_as_queries(replace(attention(5), mask=alike))
    assert found.mask is not None and found.mask.strides == (50, 0, 0, 0, 1)
    of_query = Operand((5, 50), "float32", 0, (0, 0, 0, 50, 1))  # of each query, for all heads
    kept = replace(attention(5), mask=of_query)
    assert with_heads_as_queries(kept) is kept
