# SPDX-License-Identifier: Apache-2.0
"""The address of a vector in memory, in a form that TVM turns into one access."""

from __future__ import annotations

from collections.abc import Sequence

from .... import compat
from ....compat import Buffer, Expr, tir
from ....graph.extent import Extent, as_expr, as_extent, flatten
from ....repairs.tir.sound_indices import divides
from ... import builder as B
from ...evaluator import Evaluator


def vector_address(
    ev: Evaluator, memory: Buffer, indices: list[Expr], piece: int
) -> tuple[list[Expr], Buffer]:
    """Return the address of a vector of ``piece`` elements: indices of the first one, and their buffer.

    The vector runs along the buffer's last dimension, and the evaluator is at its column. If the column runs through
    several dimensions, the buffer is a flat view: TVM makes one vector access of an index only if it sees the stride.
    """
    where = [ev.localize(i) for i in indices]
    if piece == 1:
        return where, memory
    shape = [as_extent(s) for s in memory.shape]
    address = ev.analyzer.simplify(flatten(where, shape))
    if _runs_along_last(indices, ev.al.domain.column) and not _has_size(address, shape):
        return where, memory
    flat = B.flat_view(memory)
    if divides(address) or _has_size(address, shape):
        # Later passes would merge the lane into the quotients, or compute a size's multiple on the host. Both hide
        # stride and alignment.
        vector = B.cell(ev.analyzer.simplify(tir.floordiv(address, B.i64(piece))), "vector")
        address = vector * B.i64(piece)
    return [address], flat


def _runs_along_last(indices: list[Expr], column: Expr) -> bool:
    """Return True if the column is the last index itself, and occurs in no other."""
    return compat.same_var(indices[-1], column) and not any(
        column in compat.free_vars(i) for i in indices[:-1]
    )


def _has_size(index: Expr, shape: Sequence[Extent]) -> bool:
    """Return True if a symbolic size of ``shape`` occurs in an index."""
    sizes = {v for extent in shape for v in compat.free_vars(as_expr(extent))}
    return not sizes.isdisjoint(compat.free_vars(index))
