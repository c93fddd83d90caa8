# SPDX-License-Identifier: Apache-2.0
"""Which columns of a row a thread has, and what it moves between memory and its tiles."""

from __future__ import annotations

from typing import Any

from .... import compat
from ....compat import Buffer, Expr, tir
from ....graph.dtype import item_bytes
from ....graph.extent import Extent, as_expr, is_number
from ....plan.gpu.mapping import ColumnMapping
from ....plan.iteration.alignment import Key
from ....plan.iteration.contiguity import vectorizable
from ....plan.iteration.loops import Leaf, RowLoop, is_streamed
from ....plan.kernel import Stage
from ... import builder as B
from ...buffers import Buffers
from ...evaluator import Evaluator, input_indices
from .cache_policy import load_resident, loads_words
from .packed_pairs import reads_words
from .transposed_loads import load_crossed
from .vector_address import vector_address


class RowMemory:
    """A thread's place among the rows and columns of a stage, and the tiles that it has loaded."""

    eval: Evaluator

    def __init__(self, stage: Stage, buffers: Buffers, padding: int = 0):
        self.stage, self.al, self.mapping = stage, stage.alignment, stage.row_mapping
        self.buffers = buffers
        self.domain = stage.alignment.domain
        self.load_tiles: dict[Leaf, Buffer] = {}
        self.resident: dict[Leaf, Buffer] = {}  # tiles of all the thread's columns of what rows share
        self.pairs: dict[Buffer, Buffer] = {}  # tiles as words of two elements
        self.lane: Expr = B.i64(0)
        self.slot: Expr = B.i64(0)
        self.block: Expr = B.i64(0)
        self.first_row: Expr = B.i64(0)  # of the block's group of rows
        self.segment: Expr = B.i64(0)  # which part of the row's columns the block has
        self.l2_resident: Expr | None = None  # the cache policy of loads of the stage's l2_resident inputs
        self.in_range: Expr | None = None
        self.guarded = False
        self.padding = padding  # bytes that the kernel's dynamic shared memory is larger than what it uses

    def _streamed(self, leaf: Leaf) -> bool:
        return is_streamed(self.domain.rows, leaf)

    def dynamic(self, size: int, dtype: str, name: str) -> Buffer:
        """A buffer of ``size`` elements in dynamic shared memory; the first one has the kernel's padding too."""
        more, self.padding = self.padding, 0
        return B.dynamic(size, dtype, name, more)

    def _tile(self, cm: ColumnMapping, dtype: str, name: str) -> Buffer:
        return B.local([cm.chunks * cm.vector], dtype, name)

    def input_tile(self, leaf: Leaf, p: RowLoop, size: int) -> Buffer:
        """A tile for elements of an input."""
        dtype = self.buffers.dtype(leaf[0])
        tile = B.local([size], dtype, leaf[0].name + "_in")
        if reads_words(dtype, self.input_piece(leaf, p), self.stage.schedule):
            self.pairs[tile] = B.words_of(tile)
        return tile

    def inside(self, base: Expr, columns: Extent, cm: ColumnMapping) -> Expr:
        """The column a thread works on: in shared memory's mode never past the last vector of the row."""
        if not self.mapping.shared or self._tail(columns, base) is None:
            return base
        return B.bind(tir.min(base, as_expr(columns) - B.i64(cm.vector)), "col")

    def base(self, cm: ColumnMapping, step: Expr, chunk: Expr) -> Expr:
        """The first column of a vector."""
        place = self.place(cm, step, chunk)
        if self.mapping.row_splits == 1:
            return place
        assert isinstance(cm.steps, int)
        return self.segment * B.i64(cm.steps * cm.chunks * self.mapping.threads * cm.vector) + place

    def place(self, cm: ColumnMapping, step: Expr, chunk: Expr) -> Expr:
        """A vector's place in the block's segment."""
        group = chunk if is_number(cm.steps, 1) else step * B.i64(cm.chunks) + chunk
        if self.mapping.split:
            group = self.block * B.i64(cm.chunks) + chunk
        return (group * B.i64(self.mapping.threads) + self.lane) * B.i64(cm.vector)

    def _tail(self, columns: Extent, base: Expr) -> Expr | None:
        if isinstance(columns, int):
            covered = self.mapping.covered(columns)
            if covered == columns or (self.mapping.split and columns % covered == 0):
                return None
        return base < as_expr(columns)

    def _load_tile(
        self, leaf: Leaf, p: RowLoop, cm: ColumnMapping, step: Expr, tile: Buffer | None = None
    ) -> None:
        """Bring a thread's share of an input into a tile (a new one if none is given)."""
        if tile is None:
            tile = self.input_tile(leaf, p, cm.chunks * cm.vector)
        self.load_tiles[leaf] = tile
        if leaf in self.mapping.crossed:
            load_crossed(self, leaf, p.columns, tile)
            return
        with B.loop("unroll", cm.chunks, "chunk") as chunk:
            base = self.base(cm, step, chunk)
            with B.when(None if self.mapping.shared else self._tail(p.columns, base)):
                self._read_vector(leaf, p, cm, self.inside(base, p.columns, cm), chunk * B.i64(cm.vector))

    def _load_for_step(self, p: RowLoop, cm: ColumnMapping, step: Expr) -> list[Leaf]:
        """Load what rows share for all of a step at once, where values are in shared memory and registers free."""
        if not self.mapping.shared:
            return []
        leaves = [leaf for leaf in p.loads if not self._streamed(leaf) and leaf not in self.resident]
        for leaf in leaves:
            self._load_tile(leaf, p, cm, step)
            self.resident[leaf] = self.load_tiles[leaf]
        return leaves

    def _load_shared(self, p: RowLoop, cm: ColumnMapping, base: Expr, place: Expr) -> list[Leaf]:
        """Bring one vector of what all rows share (scales, biases) into tiles; ``place`` is in the block's segment."""
        fresh = [leaf for leaf in p.loads if not self._streamed(leaf) and leaf not in self.resident]
        for leaf in fresh:
            self.load_tiles[leaf] = self.input_tile(leaf, p, cm.vector)
            self._read_vector(leaf, p, cm, base, B.i64(0))
        return fresh

    def _read_vector(self, leaf: Leaf, p: RowLoop, cm: ColumnMapping, base: Expr, start: Expr) -> None:
        tensor, point = leaf
        indices = input_indices(self.al, tensor, point)
        memory, piece = self.buffers.of(tensor), self.input_piece(leaf, p)
        policy = self.policy_of(leaf, piece)
        self._copy(memory, self.load_tiles[leaf], indices, base, start, cm, piece, True, policy)

    def policy_of(self, leaf: Leaf, piece: int) -> Expr | None:
        """The cache policy for loads of ``piece`` elements of an input; None for the cache's own."""
        lasts = leaf in self.stage.l2_resident and loads_words(self.buffers.dtype(leaf[0]), piece)
        return self.l2_resident if lasts else None

    def _store(self, p: RowLoop, cm: ColumnMapping, base: Expr, out_tiles: dict[Key, Buffer]) -> None:
        for key in p.outputs:
            op = key[0]
            values = self.domain.axis_values(*key)
            indices = [values[a.var] for a in op.spatial[: len(op.output.shape)]]
            memory, dtype = self.buffers.of(op.output), self.buffers.dtype(op.output)
            piece = self.piece(indices, op.output.shape, dtype, p.columns, cm)
            self._copy(memory, out_tiles[key], indices, base, B.i64(0), cm, piece, to_tile=False)

    def piece(self, indices: list[Expr], shape: Any, dtype: str, columns: Extent, cm: ColumnMapping) -> int:
        """Elements one vector access moves (1: scalar accesses)."""
        piece = min(cm.vector, 16 // item_bytes(dtype))
        if dtype == "bool" or piece == 1:
            return 1
        return piece if vectorizable(self.domain, indices, shape, columns, cm.vector) else 1

    def input_piece(self, leaf: Leaf, p: RowLoop) -> int:
        """Elements of an input that one vector access moves."""
        tensor, point = leaf
        indices, cm = input_indices(self.al, tensor, point), self.mapping.of(p.columns)
        return self.piece(indices, tensor.shape, self.buffers.dtype(tensor), p.columns, cm)

    def _copy(
        self, memory: Buffer, tile: Buffer, indices: list[Expr], base: Expr, start: Expr, cm: ColumnMapping,
        piece: int, to_tile: bool, policy: Expr | None = None,
    ) -> None:  # fmt: skip
        if to_tile and self.guarded:
            with B.loop("unroll", cm.vector, "v") as v:
                B.store(tile, compat.const(1, compat.buffer_dtype(tile)), [start + v])
        with B.when(self.in_range if to_tile and self.guarded else None):
            with B.loop("unroll", cm.vector // piece, "part") as q:
                where, memory = self.vector_at(memory, indices, base + q * B.i64(piece), piece)
                if policy is not None:
                    load_resident(memory, where, tile, start + q * B.i64(piece), piece, policy)
                else:
                    self._copy_piece(memory, where, tile, start + q * B.i64(piece), piece, to_tile)

    @staticmethod
    def _copy_piece(
        memory: Buffer, where: list[Expr], tile: Buffer, start: Expr, piece: int, to_tile: bool
    ) -> None:
        with B.loop("vectorized", piece, "v") as v:
            place = [*where[:-1], where[-1] + v] if where else []
            if to_tile:
                B.store(tile, compat.load(memory, place), [start + v])
            else:
                B.store(memory, B.fetch(tile, start + v), place)

    def vector_at(
        self, memory: Buffer, indices: list[Expr], column: Expr, piece: int
    ) -> tuple[list[Expr], Buffer]:
        """Where the vector of ``piece`` elements that begins at a column is."""
        self.eval.column = column
        found = vector_address(self.eval, memory, indices, piece)
        self.eval.column = None
        return found
