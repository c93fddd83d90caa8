# SPDX-License-Identifier: Apache-2.0
"""How a block's patches of crossed inputs lie in shared memory, and what they take of it.

A patch that threads load is kept row by row, with a gap behind each. One that is copied in the background keeps the
order of device memory, pieces of 16 bytes of neighbouring rows, column by column: the copies cannot turn it. So that
the threads of a warp, which read one row or a few at columns far apart, find them in different banks, the pieces of 128
bytes change places among each other, in another way for each vector of columns.
"""

from __future__ import annotations

from ...graph.dtype import item_bytes
from ...graph.extent import static_extent
from ..iteration.domain import At
from ..iteration.loops import Leaf, LoopNest
from ..layout import Pieces
from .mapping import RowMapping

PIECE_BYTES = 16
"""Of a background copy: the most that one instruction moves."""
_PIECES_OF_BANKS = 8
"""Pieces of 16 bytes that all banks of shared memory hold together."""


def pieces(mapping: RowMapping, leaf: Leaf) -> Pieces:
    """The layout of an input's patch: no piece leaves its vector of columns."""
    tensor, point = leaf
    rows = PIECE_BYTES // item_bytes(tensor.dtype)
    column = mapping.rows_per_block // rows
    return Pieces(rows, column, min(_PIECES_OF_BANKS, column * mapping.of(point.columns).vector))


def pitch(mapping: RowMapping, leaf: Leaf) -> int:
    """Elements from one row of a patch to the next: neighbouring rows begin in neighbouring banks."""
    tensor, point = leaf
    return mapping.block_columns(point.columns) + max(1, 4 // item_bytes(tensor.dtype))


def patch_elements(mapping: RowMapping, leaf: Leaf) -> int:
    """Elements that an input's patch takes."""
    columns = (
        copied_at_once(mapping, leaf) * copies(mapping, leaf) if mapping.workers else pitch(mapping, leaf)
    )
    return mapping.rows_per_block * columns


def copied_at_once(mapping: RowMapping, leaf: Leaf) -> int:
    """Columns of a patch of which the threads of a block copy a piece each in the background."""
    return mapping.block // pieces(mapping, leaf).column


def copies(mapping: RowMapping, leaf: Leaf) -> int:
    """Pieces of a patch that a thread copies: of some columns behind the block's own too, where that is not exact."""
    return -(-mapping.block_columns(leaf[1].columns) // copied_at_once(mapping, leaf))


def crossed_bytes(sched: LoopNest, mapping: RowMapping) -> int:
    """Shared memory of a block's patches, and of what it keeps beside them."""
    beside = beside_patches(sched, mapping)
    kept = sum(mapping.block_columns(at.columns) * item_bytes(t.dtype) for t, at in beside)
    return sum(_patches(sched, mapping)) + kept


def crossed_together(sched: LoopNest, mapping: RowMapping) -> int:
    """What of that is in use at a time: of patches that threads load, the next one takes the place of the last."""
    return crossed_bytes(sched, mapping) if mapping.workers else max(_patches(sched, mapping), default=0)


def _patches(sched: LoopNest, mapping: RowMapping) -> list[int]:
    """Bytes of each patch."""
    loaded = {leaf for p in sched.passes for leaf in p.loads}
    leaves = [leaf for leaf in mapping.crossed if leaf in loaded]
    return [patch_elements(mapping, leaf) * item_bytes(leaf[0].dtype) for leaf in leaves]


def beside_patches(sched: LoopNest, mapping: RowMapping) -> list[Leaf]:
    """Inputs with an element for each column, the same for all rows, that a block which stays keeps in shared memory.

    Loads from device memory would wait behind the copies of the next rows.
    """
    if not mapping.workers:
        return []
    loads = dict.fromkeys(leaf for p in sched.passes for leaf in p.loads)
    return [leaf for leaf in loads if leaf[1].at is At.COLUMN and static_extent(leaf[1].columns) > 1]
