# SPDX-License-Identifier: Apache-2.0
"""The columns of a row that a thread has, and its copies between memory and tiles."""

from __future__ import annotations

from .... import compat
from ....compat import Buffer, Expr
from ....plan.gpu.mapping import ColumnMapping
from ....plan.iteration.alignment import Key
from ....plan.iteration.loops import Leaf, RowLoop
from ....plan.kernel import Stage
from ... import builder as B
from ...buffers import Buffers
from ...evaluator import input_indices
from .cache_policy import load_resident, loads_words
from .row_position import RowPosition
from .transposed_loads import load_transposed
from .vector_address import vector_address


class RowMemory(RowPosition):
    """The tiles that a thread has loaded, and its loads and stores."""

    def __init__(self, stage: Stage, buffers: Buffers):
        super().__init__(stage, buffers)
        self.load_tiles: dict[Leaf, Buffer] = {}
        self.resident: dict[Leaf, Buffer] = {}  # all of a thread's columns, of inputs that rows share
        self.async_copies: dict[Leaf, Buffer] = {}  # inputs that cp.async stages in shared memory
        self.pairs: dict[Buffer, Buffer] = {}  # tiles as words of two elements
        self.l2_resident: Expr | None = None  # the cache policy of loads of the stage's l2_resident inputs

    def _tile(self, cm: ColumnMapping, dtype: str, name: str) -> Buffer:
        return B.local([cm.chunks * cm.vector], dtype, name)

    def input_tile(self, leaf: Leaf, size: int) -> Buffer:
        """Allocate a tile for elements of an input."""
        dtype = self.buffers.dtype(leaf[0])
        tile = B.local([size], dtype, leaf[0].name + "_in")
        if self.stage.reads_pairs(leaf, dtype):
            self.pairs[tile] = B.words_of(tile)
        return tile

    def _load_tile(
        self, leaf: Leaf, p: RowLoop, cm: ColumnMapping, step: Expr, tile: Buffer | None = None
    ) -> None:
        """Load a thread's share of an input into a tile (a new one if none is given)."""
        if tile is None:
            tile = self.input_tile(leaf, cm.chunks * cm.vector // self.stage.repeats(leaf))
        self.load_tiles[leaf] = tile
        if leaf in self.mapping.transposed:
            load_transposed(self, leaf, p.columns, tile)
            return
        with B.loop("unroll", cm.chunks, "chunk") as chunk:
            base = self.base(cm, step, chunk)
            with B.when(None if self.mapping.shared else self._tail(p.columns, base)):
                start = chunk * B.i64(cm.vector // self.stage.repeats(leaf))
                self._read_vector(leaf, cm, self.inside(base, p.columns, cm), start)

    def _load_for_step(self, p: RowLoop, cm: ColumnMapping, step: Expr) -> list[Leaf]:
        """Load the inputs that rows share, for a whole step at once.

        This needs free registers, so values must be in shared memory.
        """
        if not self.mapping.shared:
            return []
        leaves = [leaf for leaf in p.loads if not self._streamed(leaf) and leaf not in self.resident]
        for leaf in leaves:
            self._load_tile(leaf, p, cm, step)
            self.resident[leaf] = self.load_tiles[leaf]
        return leaves

    def _load_shared(self, p: RowLoop, cm: ColumnMapping, base: Expr, position: Expr) -> list[Leaf]:
        """Load one vector of inputs that all rows share (scales, biases). ``position`` is in the block's segment."""
        fresh = [leaf for leaf in p.loads if not self._streamed(leaf) and leaf not in self.resident]
        for leaf in fresh:
            self.load_tiles[leaf] = self.input_tile(leaf, cm.vector)
            self._read_vector(leaf, cm, base, B.i64(0))
        return fresh

    def _read_vector(self, leaf: Leaf, cm: ColumnMapping, base: Expr, start: Expr) -> None:
        tensor, point = leaf
        indices = input_indices(self.al, tensor, point)
        memory, piece = self.buffers.of(tensor), self.input_piece(leaf)
        policy = self.policy_of(leaf, piece)
        every = self.stage.repeats(leaf)
        self._copy(memory, self.load_tiles[leaf], indices, base, start, cm, piece, True, policy, every)

    def policy_of(self, leaf: Leaf, piece: int) -> Expr | None:
        """Return the cache policy for loads of ``piece`` elements of an input, or None for the cache's default."""
        lasts = leaf in self.stage.l2_resident and loads_words(self.buffers.dtype(leaf[0]), piece)
        return self.l2_resident if lasts else None

    def _store(self, p: RowLoop, cm: ColumnMapping, base: Expr, out_tiles: dict[Key, Buffer]) -> None:
        for key in p.outputs:
            op = key[0]
            indices = self.domain.output_indices(*key)
            memory = self.buffers.of(op.output)
            piece = self.stage.store_elements(key, self.buffers.dtype(op.output))
            self._copy(memory, out_tiles[key], indices, base, B.i64(0), cm, piece, to_tile=False)

    def input_piece(self, leaf: Leaf) -> int:
        """Return the elements of an input that one vector access moves."""
        return self.stage.load_elements(leaf, self.buffers.dtype(leaf[0]))

    def _copy(
        self, memory: Buffer, tile: Buffer, indices: list[Expr], base: Expr, start: Expr, cm: ColumnMapping,
        piece: int, to_tile: bool, policy: Expr | None = None, every: int = 1,
    ) -> None:  # fmt: skip
        elements = cm.vector // every
        if to_tile and self.guarded:
            with B.loop("unroll", elements, "v") as v:
                B.store(tile, compat.const(1, compat.buffer_dtype(tile)), [start + v])
        with B.when(self.in_range if to_tile and self.guarded else None):
            with B.loop("unroll", elements // piece, "part") as q:
                where, memory = self.vector_at(memory, indices, base + q * B.i64(piece * every), piece)
                if policy is not None:
                    load_resident(memory, where, tile, start + q * B.i64(piece), piece, policy)
                else:
                    self._copy_piece(memory, where, tile, start + q * B.i64(piece), piece, to_tile)

    @staticmethod
    def _copy_piece(
        memory: Buffer, where: list[Expr], tile: Buffer, start: Expr, piece: int, to_tile: bool
    ) -> None:
        with B.loop("vectorized", piece, "v") as v:
            position = [*where[:-1], where[-1] + v] if where else []
            if to_tile:
                B.store(tile, compat.load(memory, position), [start + v])
            else:
                B.store(memory, B.fetch(tile, start + v), position)

    def vector_at(
        self, memory: Buffer, indices: list[Expr], column: Expr, piece: int
    ) -> tuple[list[Expr], Buffer]:
        """Return the indices and the buffer of the vector of ``piece`` elements that begins at a column."""
        self.eval.column = column
        address = vector_address(self.eval, memory, indices, piece)
        self.eval.column = None
        return address
