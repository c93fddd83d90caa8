# SPDX-License-Identifier: Apache-2.0
"""The computation of attention, and the memory layout of its operands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from ..compat import Buffer, tir
from ..graph.extent import Extent, as_expr, is_number, product, same
from ..support.failures import Refusal

SMALLEST_SCALE = 1e-30
"""Least scale of scores. A smaller one may be 0 in float32, which turns infinities into NaN."""


@dataclass(frozen=True)
class Operand:
    """A tensor, and the layout of rows in it.

    Attributes:
        shape: shape of the tensor, which is compact.
        dtype: type of its elements.
        offset: position of the first element, in elements.
        strides: distances in elements along the three leading axes and between rows. A mask also has the distance
            between columns. The elements of a row of other operands are adjacent.
    """

    shape: tuple[Extent, ...]
    dtype: str
    offset: Extent
    strides: tuple[Extent, ...]

    def declared(self, name: str) -> Buffer:
        """Return a buffer for the tensor, as a kernel's parameter."""
        return tir.decl_buffer([as_expr(e) for e in self.shape], self.dtype, name)


@dataclass(frozen=True)
class Attention:
    """``out[i, :]``, the sum over j of ``softmax over j (scale * q[i, :] . k[j, :] + mask[i, j]) * v[j, :]``.

    Attributes:
        leading: three extents, usually with that of heads last. Each combination is a separate problem.
        queries, keys: rows of q, and of k and v.
        size: elements of a row.
        scale: factor of the scores.
        q, k, v, out: the operands.
        mask: added to the scores, if not None.
        causal: query ``i`` sees the keys up to ``i + causal``. None: it sees all keys.
        safe: a query that sees no key (all scores are -inf) has the result 0, not NaN.
        wide_weights: the weights of v are float32, although v is of a half type.
    """

    leading: tuple[Extent, Extent, Extent]
    queries: Extent
    keys: Extent
    size: int
    scale: float
    q: Operand
    k: Operand
    v: Operand
    out: Operand
    mask: Operand | None = None
    causal: Extent | None = None
    safe: bool = False
    wide_weights: bool = False

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The kernel's inputs, in the order of its parameters."""
        return (self.q, self.k, self.v, *([self.mask] if self.mask is not None else []))


def check_sizes(attention: Attention, scale: float, largest: int) -> None:
    """Check the size of heads (at most ``largest`` elements) and the scale.

    Raises:
        Refusal: if the kernels do not support them.
    """
    if not SMALLEST_SCALE <= scale <= 1 / SMALLEST_SCALE:
        raise Refusal(
            f"the scores' scale is {attention.scale}: the kernel's are from {SMALLEST_SCALE} to its inverse"
        )
    if not 0 < attention.size <= largest:
        raise Refusal(f"heads of {attention.size} elements: the kernel takes up to {largest}")


def with_heads_as_queries(attention: Attention) -> Attention:
    """Return attention whose query heads that share keys are further queries, if they lie so in memory.

    A kernel reads keys and values once for all queries of a problem, and once for each problem. The axis of such heads
    is the last leading axis along which neither K nor V advance. Attention that differs in what its queries see is
    returned as it is.
    """
    a = attention
    shared = [
        i
        for i, extent in enumerate(a.leading)
        if not is_number(extent, 1) and all(is_number(operand.strides[i], 0) for operand in (a.k, a.v))
    ]
    sees_all = a.causal is None or (
        is_number(a.queries, 1)
        and isinstance(a.keys, int)
        and isinstance(a.causal, int)
        and a.causal >= a.keys - 1
    )
    if not shared or not sees_all:
        return attention
    axis = shared[-1]

    def joined(operand: Operand) -> Operand | None:
        """Return an operand whose rows are those of all heads, or None if they are not evenly spaced."""
        step, row = operand.strides[axis], operand.strides[3]
        if not is_number(a.queries, 1):
            if not same(step, product([a.queries, row])):
                return None
            step = row
        strides = list(operand.strides)
        strides[axis], strides[3] = 0, step
        return replace(operand, strides=tuple(strides))

    q, out = joined(a.q), joined(a.out)
    mask = None if a.mask is None else joined(a.mask)
    if q is None or out is None or (a.mask is not None and mask is None):
        return attention
    leading = cast(
        "tuple[Extent, Extent, Extent]", tuple(1 if i == axis else e for i, e in enumerate(a.leading))
    )
    queries = product([a.leading[axis], a.queries])
    return replace(a, leading=leading, queries=queries, q=q, out=out, mask=mask, causal=None)
