# SPDX-License-Identifier: Apache-2.0
"""Emit transposed loads: rows of the input are neighbours in memory, and go through a patch in shared memory.

The plan lays out the patch.
"""

from __future__ import annotations

from .... import compat
from ....compat import Buffer, Expr, tir
from ....graph.extent import Extent, static_extent
from ....plan.iteration.loops import Leaf
from ... import builder as B
from ...evaluator import input_indices
from .row_position import RowPosition


def load_transposed(emitter: RowPosition, leaf: Leaf, columns: Extent, tile: Buffer) -> None:
    """Load a thread's columns of an input into a tile, by way of the block's patch.

    Neighbouring threads load neighbouring rows. Elements past the last row or column are 0. All threads of the block
    take part, so nothing here is in a condition.
    """
    m, cm = emitter.mapping, emitter.mapping.of(columns)
    layout = emitter.stage.layout.loaded_patches[leaf]
    line, at_once = layout.pitch, layout.loads_at_once
    patch = B.dynamic(layout.buffer)
    start = emitter.segment * B.i64(m.block_columns(columns))
    thread = emitter.slot * B.i64(m.threads) + emitter.lane
    row, across = tir.floormod(thread, B.i64(m.rows_per_block)), tir.floordiv(thread, B.i64(m.rows_per_block))
    loads = cm.chunks * cm.vector
    with B.loop("serial", loads // at_once, "part") as part, B.loop("unroll", at_once, "load") as load:
        column = (part * B.i64(at_once) + load) * B.i64(m.threads) + across
        value = _element(emitter, leaf, columns, emitter.first_row + row, start + column)
        B.store(patch, value, [row * B.i64(line) + column])
    B.block_barrier()
    with B.loop("unroll", cm.chunks, "chunk") as chunk, B.loop("unroll", cm.vector, "v") as v:
        column = (chunk * B.i64(m.threads) + emitter.lane) * B.i64(cm.vector) + v
        B.store(tile, B.fetch(patch, emitter.slot * B.i64(line) + column), [chunk * B.i64(cm.vector) + v])


def _element(emitter: RowPosition, leaf: Leaf, columns: Extent, row: Expr, column: Expr) -> Expr:
    """Return an element of an input, or 0 past the last row or column."""
    tensor, point = leaf
    m, rows, length = emitter.mapping, static_extent(emitter.domain.rows), static_extent(columns)
    inside = None
    if rows % m.rows_per_block:
        inside = tir.LT(row, B.i64(rows))
    if m.covered(columns) != length:
        inside = B.both(inside, tir.LT(column, B.i64(length)))
    where = [emitter.eval.at(index, row, column) for index in input_indices(emitter.al, tensor, point)]
    memory = emitter.buffers.of(tensor)
    value = compat.load(memory, where)
    return (
        value
        if inside is None
        else tir.if_then_else(inside, value, compat.const(0, compat.buffer_dtype(memory)))
    )
