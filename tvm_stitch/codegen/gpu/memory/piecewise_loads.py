# SPDX-License-Identifier: Apache-2.0
"""Load a value that is put together of pieces of inputs: choose a piece once for each vector of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import compat
from ....compat import Buffer, Expr
from ....graph.names import short_name
from ....plan.gpu.mapping import ColumnMapping
from ....plan.iteration.alignment import Key
from ....plan.iteration.loops import RowLoop
from ....plan.iteration.pieces import Choice, Piece
from ... import builder as B
from ...evaluator import convert, input_indices

if TYPE_CHECKING:
    from .row_memory import RowMemory


def load_pieces(memory: RowMemory, p: RowLoop, cm: ColumnMapping, step: Expr) -> dict[Key, Buffer]:
    """Load the values of a pass that are pieces of inputs, and return a tile of a thread's columns for each."""
    loaded: dict[Key, Buffer] = {}
    if memory.guarded or memory.mapping.shared or cm.vector == 1:
        return loaded
    for key in p.values:
        choice = memory.stage.choice(key, p.columns)
        if choice is not None:
            loaded[key] = _loaded(memory, key, choice, p, cm, step)
    return loaded


def _loaded(memory: RowMemory, key: Key, choice: Choice, p: RowLoop, cm: ColumnMapping, step: Expr) -> Buffer:
    dtype = memory.buffers.dtype(key[0].output)
    tile = B.local([cm.chunks * cm.vector], dtype, f"{short_name(key[0])}_in")
    width = choice.columns
    with B.loop("unroll", cm.chunks, "chunk") as chunk:
        base = memory.base(cm, step, chunk)
        with B.when(memory._tail(p.columns, base)), B.loop("unroll", cm.vector // width, "part") as part:
            start = chunk * B.i64(cm.vector) + part * B.i64(width)
            _choose(memory, choice, 0, base + part * B.i64(width), tile, start)
    return tile


def _choose(memory: RowMemory, choice: Choice, at: int, column: Expr, tile: Buffer, start: Expr) -> None:
    """Emit the load of a piece if its condition holds, else the choice between the later ones."""
    piece = choice.pieces[at]
    if piece.condition is None:
        _copy(memory, piece, choice.columns, column, tile, start)
        return
    condition = memory.eval.at(piece.condition, memory.eval.row, column)
    B.either(
        condition,
        lambda: _copy(memory, piece, choice.columns, column, tile, start),
        lambda: _choose(memory, choice, at + 1, column, tile, start),
    )


def _copy(memory: RowMemory, piece: Piece, width: int, column: Expr, tile: Buffer, start: Expr) -> None:
    if piece.tensor is None or piece.point is None:
        assert piece.constant is not None
        with B.loop("unroll", width, "v") as v:
            B.store(tile, convert(piece.constant, compat.buffer_dtype(tile)), [start + v])
        return
    indices = input_indices(memory.al, piece.tensor, piece.point)
    where, source = memory.vector_at(memory.buffers.of(piece.tensor), indices, column, width)
    memory._copy_piece(source, where, tile, start, width, True)
