# SPDX-License-Identifier: Apache-2.0
"""Lay out the patches of transposed inputs in a block's shared memory.

A patch that threads load is stored row by row, with a gap behind each row. A patch that cp.async fills keeps the order
of device memory: pieces of 16 bytes of neighbouring rows, column by column, because the copies cannot transpose it. The
threads of a warp read one row or a few, at columns far apart. The pieces of 128 bytes are therefore permuted, in
another way for each vector of columns, so that these threads read different banks.
"""

from __future__ import annotations

from ...graph.dtype import item_bytes
from ...graph.extent import static_extent
from ..iteration.domain import At
from ..iteration.loops import Leaf, LoopNest
from ..layout import Pieces
from .mapping import RowMapping

PIECE_BYTES = 16
"""Bytes that one cp.async copies, the most that it can."""
_PIECES_OF_BANKS = 8
"""Pieces of 16 bytes that all banks of shared memory hold together."""


def pieces(mapping: RowMapping, leaf: Leaf) -> Pieces:
    """Return the layout of an input's patch: no piece leaves its vector of columns."""
    tensor, point = leaf
    rows = PIECE_BYTES // item_bytes(tensor.dtype)
    column = mapping.rows_per_block // rows
    return Pieces(rows, column, min(_PIECES_OF_BANKS, column * mapping.of(point.columns).vector))


def pitch(mapping: RowMapping, leaf: Leaf) -> int:
    """Return the elements from one row of a patch to the next: neighbouring rows begin in neighbouring banks."""
    tensor, point = leaf
    return mapping.block_columns(point.columns) + max(1, 4 // item_bytes(tensor.dtype))


def patch_elements(mapping: RowMapping, leaf: Leaf) -> int:
    """Return the number of elements of an input's patch."""
    columns = (
        copied_at_once(mapping, leaf) * copies(mapping, leaf) if mapping.workers else pitch(mapping, leaf)
    )
    return mapping.rows_per_block * columns


def copied_at_once(mapping: RowMapping, leaf: Leaf) -> int:
    """Return how many columns of a patch the threads of a block copy at once, one piece each."""
    return mapping.block // pieces(mapping, leaf).column


def copies(mapping: RowMapping, leaf: Leaf) -> int:
    """Return how many pieces of a patch a thread copies. Some may lie behind the block's columns."""
    return -(-mapping.block_columns(leaf[1].columns) // copied_at_once(mapping, leaf))


def patch_bytes(sched: LoopNest, mapping: RowMapping) -> int:
    """Return the bytes of a block's patches and of the columns that a persistent block keeps."""
    columns = shared_columns(sched, mapping)
    kept = sum(mapping.block_columns(at.columns) * item_bytes(t.dtype) for t, at in columns)
    return sum(_patches(sched, mapping)) + kept


def patch_bytes_at_once(sched: LoopNest, mapping: RowMapping) -> int:
    """Return the bytes of patches in use at once: a patch that threads load uses the memory of the one before."""
    return patch_bytes(sched, mapping) if mapping.workers else max(_patches(sched, mapping), default=0)


def _patches(sched: LoopNest, mapping: RowMapping) -> list[int]:
    """Return the bytes of each patch."""
    loaded = {leaf for p in sched.passes for leaf in p.loads}
    leaves = [leaf for leaf in mapping.transposed if leaf in loaded]
    return [patch_elements(mapping, leaf) * item_bytes(leaf[0].dtype) for leaf in leaves]


def shared_columns(sched: LoopNest, mapping: RowMapping) -> list[Leaf]:
    """Return the inputs with one element for each column that a persistent block keeps in shared memory.

    Loads from device memory would wait behind the copies of the next rows.
    """
    if not mapping.workers:
        return []
    loads = dict.fromkeys(leaf for p in sched.passes for leaf in p.loads)
    return [leaf for leaf in loads if leaf[1].at is At.COLUMN and static_extent(leaf[1].columns) > 1]
