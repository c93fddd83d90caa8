# SPDX-License-Identifier: Apache-2.0
"""Store the factors of a product in shared memory, in the order in which lanes multiply them.

An octet of factors is what a lane multiplies by a word of eight fields. Lanes read an octet of zeros for the groups
that are not theirs, and for factors that do not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .... import compat
from ....compat import Buffer, Expr, tir
from ....graph.ir import Operator, Tensor
from ....plan.gpu.mapping import ColumnMapping
from ....plan.iteration.alignment import Key
from ....plan.iteration.loops import Leaf
from ....plan.rows.matrix_units import MatrixUnits
from ... import builder as B
from ...evaluator import convert
from ..reduce import WARP
from ..stage import StageEmitter


class FactorEmitter(StageEmitter):
    """Emits the factors of a stage whose sums matrix units take."""

    def __init__(self, *arguments: Any, ring: Buffer | None = None):
        super().__init__(*arguments)
        self.ring = ring  # a buffer with memory for the factors in front of the weights
        assert self.mapping.matrix is not None and self.stage.layout.matrix is not None
        self.units: MatrixUnits = self.mapping.matrix
        self.warps = self.mapping.block // WARP
        self.quarter = self.thread & B.i64(MatrixUnits.row_lanes - 1)
        self.across = (self.thread & B.i64(WARP - 1)) >> B.i64(2)
        self.warp = self.thread >> B.i64(5)

    def _hoist(self, once: Expr) -> None:
        super()._hoist(once)
        assert self.stage.layout.matrix is not None
        self.held = B.dynamic(self.stage.layout.matrix) if self.ring is None else self.ring
        self._store_factors()
        B.block_barrier()

    def _store_factors(self) -> None:
        """Store the factors of all columns, and zeros for those past the row's end."""
        u, threads = self.units, self.mapping.block
        octets = u.columns // MatrixUnits.octet
        turns = -(-octets // threads)
        together = max(1, min(turns, u.factors_in_flight // len(u.factors)))
        with B.loop("serial", -(-turns // together), "turn") as turn:
            numbers = [
                (turn * B.i64(together) + B.i64(k)) * B.i64(threads) + self.thread for k in range(together)
            ]
            exact = octets % (threads * together) == 0
            held = [self._load_octets(n, None if exact else n < B.i64(octets)) for n in numbers]
            for number, tiles in zip(numbers, held):
                with B.when(None if exact else number < B.i64(octets)):
                    for i, factor in enumerate(u.factors):
                        self._store_octet(factor, i, number * B.i64(MatrixUnits.octet), tiles)
        zeros = [(u.factor_elements - MatrixUnits.octet, MatrixUnits.octet)]
        if u.covered_chunks > u.row_chunks:
            start = u.row_chunks * u.chunk_columns * u.stored_factors
            zeros.append((start, u.covered_chunks * u.chunk_columns * u.stored_factors - start))
        for start, count in zeros:
            self._store_zeros(start, count, B.i64(1))
        for number in range(len(u.factors), u.stored_factors):
            per_octet = MatrixUnits.row_lanes * MatrixUnits.octet
            count = u.row_chunks * u.lane_columns // MatrixUnits.octet
            with B.loop("serial", -(-count * per_octet // threads), "zeros") as turn:
                at = turn * B.i64(threads) + self.thread
                with B.when(at < B.i64(count * per_octet)):
                    apart = (at // B.i64(per_octet) * B.i64(u.stored_factors) + B.i64(number)) * B.i64(
                        per_octet
                    )
                    zero = compat.const(0.0, "float32")
                    B.store(self.held, convert(zero, u.dtype), [apart + at % B.i64(per_octet)])

    def _store_zeros(self, start: int, count: int, apart: Expr) -> None:
        threads = self.mapping.block
        with B.loop("serial", -(-count // threads), "zeros") as turn:
            at = turn * B.i64(threads) + self.thread
            with B.when(at < B.i64(count)):
                zero = convert(compat.const(0.0, "float32"), self.units.dtype)
                B.store(self.held, zero, [B.i64(start) + at * apart])

    def _load_octets(self, number: Expr, inside: Expr | None) -> dict[Leaf, Buffer]:
        """Load what eight neighbouring elements of all factors are computed from."""
        cm, before, tiles = ColumnMapping(MatrixUnits.octet, 1), self.load_tiles, {}
        for leaf in dict.fromkeys(leaf for factor in self.units.factors for leaf in self._inputs(factor)):
            tile = B.local([MatrixUnits.octet], self.buffers.dtype(leaf[0]), f"{leaf[0].name}_in")
            self.load_tiles = {leaf: tile}
            with B.when(inside):
                self._read_vector(leaf, cm, number * B.i64(MatrixUnits.octet), B.i64(0))
            tiles.update(self.load_tiles)
        self.load_tiles = before
        return tiles

    def _store_octet(self, factor: Key | Leaf, number: int, column: Expr, tiles: dict[Leaf, Buffer]) -> None:
        """Store eight neighbouring elements of a factor."""
        u, (first, point), before = self.units, factor, self.load_tiles
        self.load_tiles = {**before, **tiles}
        eight = MatrixUnits.octet
        octet = B.local([eight], u.dtype, "factors")
        several = (
            32 // u.packed.bits > eight
        )  # octets of a word: fields of one are elements of pairs in all of them
        for e in range(eight):
            self.element = self.lane_element = B.i64(e)
            self.eval.at_column(column + B.i64(e))
            if isinstance(first, Operator):
                value = self.eval.value((first, point))
            else:
                value = B.fetch(self.load_tiles[(first, point)], e)
            B.store(octet, convert(value, u.dtype), [B.i64(e if several else u.position(e))])
        self.load_tiles = before
        self.end_sweep()
        lane = B.cell(column // B.i64(u.lane_columns), "lane")  # among the lanes of all chunks
        own = B.cell(column % B.i64(u.lane_columns) // B.i64(eight), "own")
        if not several:
            at = self._octet_at(lane, own, number)
            with B.loop("vectorized", eight, "v") as v:
                B.store(self.held, compat.load(octet, [v]), [at * B.i64(eight) + v])
            return
        word, part = own // B.i64(2), own % B.i64(2)
        for e in range(eight):
            at = self._octet_at(lane, word * B.i64(2) + B.i64(2 * e // eight), number)
            B.store(self.held, B.fetch(octet, e), [at * B.i64(eight) + B.i64(2 * e % eight) + part])

    def _octet_at(self, lane: Expr, octet: Expr, number: int) -> Expr:
        """Return the position of a lane's octet of a factor among all octets."""
        u, lanes = self.units, B.i64(MatrixUnits.row_lanes)
        row = (lane // lanes) * B.i64(u.lane_columns // MatrixUnits.octet) + octet
        return (row * B.i64(u.stored_factors) + B.i64(number)) * lanes + lane % lanes

    def _inputs(self, factor: Key | Leaf) -> Iterator[Leaf]:
        """Yield the inputs of which a factor reads an element for each column."""
        waiting: list[Key | Leaf] = [factor]
        seen: set[object] = set()
        while waiting:
            first, point = waiting.pop()
            if (first, point) in seen or not point.per_column:
                continue
            seen.add((first, point))
            if isinstance(first, Tensor):
                yield first, point
                continue
            for access, at in self.al.children((first, point)):
                producer = access.tensor.producer
                if at is None or access.guarded:
                    continue
                own = producer is not None and (producer, at) in self.al.reads
                waiting.append((producer, at) if own and producer is not None else (access.tensor, at))

    def _place_factors(self) -> None:
        """Set the lane's first octet of factors, and the elements from one octet to the next one."""
        u = self.units
        factor = self.across >> B.i64(u.groups.bit_length() - 1)
        group = self.quarter >> B.i64(2 - (u.groups.bit_length() - 1))
        own = tir.EQ(self.across & B.i64(u.groups - 1), group)
        if u.tiles == 1 and len(u.factors) * u.groups < MatrixUnits.mma_columns:
            own = tir.And(own, factor < B.i64(len(u.factors)))
        start = (factor * B.i64(MatrixUnits.row_lanes) + self.quarter) * B.i64(MatrixUnits.octet)
        per_octet = u.stored_factors * MatrixUnits.row_lanes * MatrixUnits.octet
        self.octet = B.cell(tir.Select(own, start, B.i64(u.factor_elements - MatrixUnits.octet)), "octet")
        self.apart = B.cell(tir.Select(own, B.i64(per_octet), B.i64(0)), "octets_apart")
        of_tile = MatrixUnits.mma_columns // u.groups * MatrixUnits.row_lanes * MatrixUnits.octet
        self.tile_apart = B.cell(tir.Select(own, B.i64(of_tile), B.i64(0)), "tiles_apart")
