# SPDX-License-Identifier: Apache-2.0
"""Copy the patches of a block's next rows to shared memory by cp.async, and read the patches of its own rows.

A patch is the rectangle of a transposed input that a block reads for its rows.

Every thread copies pieces of 16 bytes, next to those of its neighbours. It reads pieces that others have copied, so
block barriers separate the two. Inputs that all rows share for each column stay in shared memory next to the patches.
"""

from __future__ import annotations

from .... import compat
from ....compat import Buffer, Expr, T, tir
from ....graph.dtype import item_bytes
from ....graph.extent import static_extent
from ....plan.iteration.loops import Leaf
from ... import builder as B
from ...evaluator import input_indices
from .row_memory import RowMemory


class PatchCopy:
    """The patch of one input."""

    def __init__(self, emitter: RowMemory, leaf: Leaf):
        self.emitter, self.leaf = emitter, leaf
        m, point = emitter.mapping, leaf[1]
        self.layout = emitter.stage.layout.copied_patches[leaf]
        self.columns, self.covered = static_extent(point.columns), m.block_columns(point.columns)
        self.vector = m.of(point.columns).vector
        self.patch = B.dynamic(self.layout.buffer)

    def copy(self, group: Expr, number: Expr, wanted: Expr | None = None) -> None:
        """Begin one of a thread's copies for a group of rows. The group may not exist if it is not ``wanted``.

        Missing elements become 0, by a copy that reads nothing. A condition would separate the instructions before it
        from those after it.
        """
        emitter, layout, at_once = self.emitter, self.layout.pieces, self.layout.columns_at_once
        m, (tensor, point) = emitter.mapping, self.leaf
        rows = static_extent(emitter.domain.rows)
        thread = emitter.slot * B.i64(m.threads) + emitter.lane
        piece = thread & B.i64(layout.column - 1)
        across = thread >> B.i64(layout.column.bit_length() - 1)
        own = number * B.i64(at_once) + across
        row = group * B.i64(m.rows_per_block) + piece * B.i64(layout.rows)
        column = emitter.segment * B.i64(self.covered) + own
        there = wanted
        if rows % m.rows_per_block:
            there, row = B.both(there, row < B.i64(rows)), tir.min(row, B.i64(rows - layout.rows))
        if m.covered(point.columns) - self.covered + self.layout.copies * at_once > self.columns:
            there = B.both(there, column < B.i64(self.columns))
            column = tir.min(column, B.i64(self.columns - 1))
        size = compat.const(self.layout.piece_bytes, "uint32")
        if there is not None:
            size = tir.Select(there, size, compat.const(0, "uint32"))
        where = [emitter.eval.at(index, row, column) for index in input_indices(emitter.al, tensor, point)]
        to = tir.address_of(B.fetch(self.patch, self._position(own, piece) * B.i64(layout.rows)))
        source = tir.address_of(compat.load(emitter.buffers.of(tensor), where))
        copy = T.ptx.cp.async_.cg.shared.global_
        B.evaluate(copy(T.cuda.cvta_generic_to_shared(to), source, self.layout.piece_bytes, size))

    def read(self, tile: Buffer) -> None:
        """Load a thread's columns of its row into a tile. Missing columns are 0."""
        emitter, layout, vector = self.emitter, self.layout.pieces, self.vector
        m = emitter.mapping
        piece = emitter.slot >> B.i64(layout.rows.bit_length() - 1)
        within = emitter.slot & B.i64(layout.rows - 1)
        with B.loop("unroll", m.of(self.leaf[1].columns).chunks, "chunk") as chunk:
            first = (chunk * B.i64(m.threads) + emitter.lane) * B.i64(vector)
            there = emitter.in_range
            if m.covered(self.leaf[1].columns) != self.columns:
                there = B.both(there, emitter.segment * B.i64(self.covered) + first < B.i64(self.columns))
            moved = tir.floordiv(first, B.i64(vector)) & B.i64(layout.positions - 1)
            for v in range(vector):
                # The same position as in _position(), as a term that several columns share and changes in the low
                # bits only.
                low = v * layout.column % layout.positions
                position = (
                    first * B.i64(layout.column)
                    + B.i64(v * layout.column - low)
                    + ((piece + B.i64(low)) ^ moved)
                )
                value = B.fetch(self.patch, position * B.i64(layout.rows) + within)
                if there is not None:
                    value = tir.if_then_else(there, value, compat.const(0, compat.buffer_dtype(self.patch)))
                B.store(tile, value, [chunk * B.i64(vector) + B.i64(v)])

    def _position(self, column: Expr, piece: Expr) -> Expr:
        """Return the position of a column's piece. All columns of a vector, and only they, are permuted alike."""
        moved = tir.floordiv(column, B.i64(self.vector)) & B.i64(self.layout.pieces.positions - 1)
        return (column * B.i64(self.layout.pieces.column) + piece) ^ moved


class SharedColumns:
    """The inputs that all rows share for each column, in shared memory for the lifetime of the block."""

    def __init__(self, emitter: RowMemory):
        self.emitter = emitter
        wanted = emitter.stage.layout.shared_columns
        self.kept = {leaf: B.dynamic(buffer) for leaf, buffer in wanted.items()}

    def load(self) -> None:
        """Load the inputs into shared memory. Every slot loads some of the chunks."""
        emitter, m = self.emitter, self.emitter.mapping
        for leaf, kept in self.kept.items():
            p = emitter.stage.schedule.loading(leaf)
            cm = m.of(p.columns)
            with B.loop("serial", -(-cm.chunks // m.rows_per_block), "part") as part:
                chunk = part * B.i64(m.rows_per_block) + emitter.slot
                base = emitter.base(cm, B.i64(0), chunk)
                inside = chunk < B.i64(cm.chunks) if cm.chunks % m.rows_per_block else None
                with B.when(B.both(inside, emitter._tail(p.columns, base))):
                    emitter.load_tiles[leaf] = emitter.input_tile(leaf, cm.vector)
                    emitter._read_vector(leaf, cm, base, B.i64(0))
                    _move(
                        emitter.load_tiles[leaf],
                        B.i64(0),
                        kept,
                        emitter.position(cm, B.i64(0), chunk),
                        cm.vector,
                    )
            del emitter.load_tiles[leaf]

    def read(self, leaf: Leaf, tile: Buffer, position: Expr, vector: int) -> None:
        """Load the vector that begins at a position of the block's columns into a tile."""
        _move(self.kept[leaf], position, tile, B.i64(0), vector)


def _move(source: Buffer, first: Expr, to: Buffer, position: Expr, vector: int) -> None:
    """Copy a vector of elements, as many at once as one instruction moves."""
    piece = min(vector, 16 // item_bytes(compat.buffer_dtype(source)))
    for start in range(0, vector, piece):
        with B.loop("vectorized", piece, "v") as v:
            B.store(to, B.fetch(source, first + B.i64(start) + v), [position + B.i64(start) + v])
