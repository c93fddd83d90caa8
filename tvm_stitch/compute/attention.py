# SPDX-License-Identifier: Apache-2.0
"""What attention computes, and how its operands lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

from ..compat import Buffer, tir
from ..graph.extent import Extent, as_expr
from ..support.failures import Refusal

SMALLEST_SCALE = 1e-30
"""Of scores: what is less may be 0 in float32, and infinities then become NaN."""


@dataclass(frozen=True)
class Operand:
    """A tensor, and how rows lie in it.

    Attributes:
        shape: of the tensor, which is compact.
        dtype: its elements' type.
        offset: of the first element, in elements.
        strides: distances along the three leading axes and between rows; of a mask between its columns too. Elements
            of the rows of other operands are neighbours.
    """

    shape: tuple[Extent, ...]
    dtype: str
    offset: Extent
    strides: tuple[Extent, ...]

    def declared(self, name: str) -> Buffer:
        """Return a buffer for it, as a kernel's parameter."""
        return tir.decl_buffer([as_expr(e) for e in self.shape], self.dtype, name)


@dataclass(frozen=True)
class Attention:
    """``out[i, :]``, the sum over j of ``softmax over j (scale * q[i, :] . k[j, :] + mask[i, j]) * v[j, :]``.

    Attributes:
        leading: three extents, that of heads being the last one usually: of each place there a problem.
        queries, keys: rows of q, and of k and v.
        size: elements of a row.
        scale: of the scores.
        q, k, v, out: the operands.
        mask: what is added to the scores, if anything.
        causal: query ``i`` sees the keys up to ``i + causal``; None: all of them.
        safe: a query that sees no key (all scores are -inf) has the result 0, not NaN.
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

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """What the kernel reads, in the order of its parameters."""
        return (self.q, self.k, self.v, *([self.mask] if self.mask is not None else []))


def check_sizes(attention: Attention, scale: float, largest: int) -> None:
    """Raise a Refusal unless kernels take heads of that size, of ``largest`` elements at most, and the scale."""
    if not SMALLEST_SCALE <= scale <= 1 / SMALLEST_SCALE:
        raise Refusal(
            f"the scores' scale is {attention.scale}: the kernel's are from {SMALLEST_SCALE} to its inverse"
        )
    if not 0 < attention.size <= largest:
        raise Refusal(f"heads of {attention.size} elements: the kernel takes up to {largest}")
