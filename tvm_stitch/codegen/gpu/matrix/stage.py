# SPDX-License-Identifier: Apache-2.0
"""Emit a stage whose sums matrix units take (see ``plan.rows.matrix_units``).

A block stores the factors in shared memory once, in the order in which lanes multiply them. Then each warp multiplies
its rows of weights, and hands its sums to the threads of those rows through shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .... import compat
from ....compat import Buffer, Expr, tir
from ....graph.dtype import item_bytes
from ....graph.extent import as_expr, is_number
from ....graph.ir import Operator, Tensor
from ....plan.gpu.mapping import ColumnMapping
from ....plan.iteration.alignment import Key
from ....plan.iteration.loops import Leaf, RowLoop
from ....plan.rows.fields import PackedWeight, Place
from ....plan.rows.matrix_units import MatrixUnits
from ... import builder as B
from ...evaluator import convert
from ..reduce import WARP, fold_partials
from ..stage import StageEmitter
from .functions import add_products, fetch_line, get_sum, load_early, put_sum


@dataclass(frozen=True)
class _Rows:
    """The rows of weights of a lane in one half of a tile.

    Attributes:
        weights: of the rows' product.
        row: of the domain.
        neighbour: which of the product's neighbouring rows.
        words: the lane's first vector of words.
        scales: of each place that the scale reads, the first vector of the row's elements.
    """

    weights: tuple[PackedWeight, ...]
    row: Expr
    neighbour: Expr
    words: Expr
    scales: tuple[Expr, ...]


class MatrixStageEmitter(StageEmitter):
    """Emits a stage whose sums matrix units take."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        assert self.mapping.matrix is not None and self.stage.layout.matrix is not None
        self.units: MatrixUnits = self.mapping.matrix
        self.warps = self.mapping.block // WARP
        self.quarter = self.thread & B.i64(MatrixUnits.row_lanes - 1)
        self.across = (self.thread & B.i64(WARP - 1)) >> B.i64(2)
        self.warp = self.thread >> B.i64(5)

    # -- weights ahead of their use ------------------------------------------------------------------------------------
    def fetch_first(self) -> None:
        """Fetch the first weights into the second-level cache, before the barrier that the stage is behind."""
        u, stage, blocks = self.units, self.stage, self.grid.blocks
        worker = tir.floormod(self.grid_block + B.i64(blocks - stage.offset), B.i64(blocks))
        with B.loop("serial", tir.Select(tir.GE(worker, B.i64(0)), B.i64(1), B.i64(0)), "ahead"):
            self.first_row = worker * B.i64(self.mapping.rows_per_block)
            rows, chunk = self._lane_rows()
            with B.when(worker < B.i64(stage.stride)):
                self._fetch(rows, chunk, min(u.ahead, u.steps * u.chunks))

    def _fetch(self, rows: list[_Rows], chunk: Expr, chunks: int, inside: Expr | None = None) -> None:
        """Fetch the lines of weights of some chunks from one on."""
        u, line = self.units, 128
        lines = -(-chunks * MatrixUnits.row_lanes * u.lane_bytes // line)
        for of in rows:
            memory = self._words(of)
            for first in range(0, lines, MatrixUnits.row_lanes):
                number = self.quarter + B.i64(first)
                few = number < B.i64(lines) if first + MatrixUnits.row_lanes > lines else None
                if u.covered_chunks > u.row_chunks:  # some have none, and lines there are not the row's
                    chunk_lines = MatrixUnits.row_lanes * u.lane_bytes
                    few = B.both(
                        few, chunk + number * B.i64(line) // B.i64(chunk_lines) < B.i64(u.row_chunks)
                    )
                vector = of.words - self.quarter + chunk * B.i64(MatrixUnits.row_lanes)
                at = vector * B.i64(u.lane_bytes // 4) + number * B.i64(line // 4)
                with B.when(B.both(inside, few)):
                    B.evaluate(fetch_line(tir.address_of(B.fetch(memory, at))))

    # -- factors -------------------------------------------------------------------------------------------------------
    def _hoist(self, once: Expr) -> None:
        super()._hoist(once)
        assert self.stage.layout.matrix is not None
        self.held = B.dynamic(self.stage.layout.matrix)
        self._store_factors()
        B.block_barrier()

    def _store_factors(self) -> None:
        """Store the factors of all columns, and zeros for those past the row's end."""
        u, threads = self.units, self.mapping.block
        octets = u.columns // MatrixUnits.octet
        with B.loop("serial", -(-octets // threads), "octets") as turn:
            octet = turn * B.i64(threads) + self.thread
            with B.when(None if octets % threads == 0 else octet < B.i64(octets)):
                for number, factor in enumerate(u.factors):
                    self._store_octet(factor, number, octet * B.i64(MatrixUnits.octet))
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

    def _store_octet(self, factor: Key | Leaf, number: int, column: Expr) -> None:
        """Store eight neighbouring elements of a factor."""
        u, (first, point) = self.units, factor
        cm, before = ColumnMapping(MatrixUnits.octet, 1), dict(self.load_tiles)
        for leaf in self._inputs(factor):
            self.load_tiles[leaf] = self.input_tile(leaf, MatrixUnits.octet)
            self._read_vector(leaf, cm, column, B.i64(0))
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

    # -- sums ----------------------------------------------------------------------------------------------------------
    def _pass(self, p: RowLoop) -> None:
        if p is not self.units.sums:
            super()._pass(p)
            return
        for key in p.row_values:
            self.eval.bind_row(key)
        self._load_behind()
        self._hand_over(self._products())
        self._take(p)

    def _load_behind(self) -> None:
        """Load what the passes behind the sums read of each row, such as a residual, before the sums."""
        for p in self.stage.schedule.passes:
            cm = self.mapping.of(p.columns)
            if p is not self.units.sums and is_number(cm.steps, 1):
                for leaf in filter(self._is_fresh, p.loads):
                    self._load_tile(leaf, p, cm, B.i64(0))

    def _products(self) -> list[Expr]:
        """Multiply a warp's rows of weights by all factors. Return the lane's sums, fragment by fragment."""
        u = self.units
        rows, first_chunk = self._lane_rows()
        if u.fetches and self.stage.tasks > self.stage.stride:
            self._fetch(self._next_task(rows), first_chunk, u.chunks)
        self._place_factors()
        totals = B.local([u.tiles * 4], "float32", "totals")
        for i in range(u.tiles * 4):
            B.store(totals, compat.float_const(0.0, "float32"), [B.i64(i)])
        with B.loop("serial", u.steps, "step") as step:
            chunk = B.cell(first_chunk + step * B.i64(u.chunks), "chunk")
            if u.fetches and u.steps > 1:
                self._fetch(rows, chunk + B.i64(u.chunks), u.chunks, step < B.i64(u.steps - 1))
            self._step(rows, chunk, totals)
        return [B.fetch(totals, i) for i in range(u.tiles * 4)]

    def _lane_rows(self) -> tuple[list[_Rows], Expr]:
        """Return the rows of weights of a lane, and the first chunk of its warp."""
        u = self.units
        part = B.cell(self.warp & B.i64(u.slices - 1), "part")
        tile = B.cell(self.warp >> B.i64(u.slices.bit_length() - 1), "tile")
        first_chunk = B.cell(part * B.i64(u.steps * u.chunks), "first_chunk")
        return [self._rows_of(half, tile) for half in range(2)], first_chunk

    def _next_task(self, rows: list[_Rows]) -> list[_Rows]:
        """Return the rows of the block's next task, or of this one if it is the last."""
        further = self.stage.stride * self.mapping.rows_per_block
        found = []
        for of in rows:
            place = of.weights[0].words
            vectors = (
                further * place.stride * place.every * self.units.packed.bits // (8 * self.units.lane_bytes)
            )
            exists = of.row + B.i64(further) < as_expr(self.domain.rows)
            found.append(replace(of, words=tir.Select(exists, of.words + B.i64(vectors), of.words)))
        return found

    def _rows_of(self, half: int, tile: Expr) -> _Rows:
        u = self.units
        several = len(u.weights) > 1
        weights = u.weights[half if several else 0]
        neighbour = self.across & B.i64(u.width - 1)
        row = self.first_row + tile * B.i64(u.tile_rows) + (self.across >> B.i64(u.width.bit_length() - 1))
        if half and not several:
            row = row + B.i64(MatrixUnits.mma_rows // 2 // u.width)
        row = B.cell(tir.min(row, as_expr(self.domain.rows) - B.i64(1)), "row")
        words = self._element(tuple(w.words for w in weights), row, neighbour)
        # Numbers of vectors, times their length: TVM makes one access of a vector only if it sees a multiple.
        vectors = B.cell(words // B.i64(u.lane_columns // weights[0].words.every) + self.quarter, "words")
        scales = []
        for places in zip(*(w.places for w in weights)):
            first, length = self._element(places, row, neighbour), self._scales_together(places)
            scales.append(B.cell(first // B.i64(length) if length > 1 else first, "scales"))
        return _Rows(weights, row, neighbour, vectors, tuple(scales))

    def _scales_together(self, places: tuple[Place, ...]) -> int:
        """Return how many neighbouring elements a lane loads of a scale at once: those of its sums' groups."""
        even = all(n % 2 == 0 for place in places for n in (place.base, place.stride))
        return 2 if self.units.groups > 1 and places[0].every == self.units.packed.group and even else 1

    @staticmethod
    def _element(places: tuple[Place, ...], row: Expr, neighbour: Expr) -> Expr:
        """Return the first element of a lane's row of neighbouring rows."""
        first = places[0]
        at = row * B.i64(first.stride) + B.i64(first.base)
        return at + neighbour * B.i64(places[1].base - first.base) if len(places) > 1 else at

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

    def _step(self, rows: list[_Rows], chunk: Expr, totals: Buffer) -> None:
        """Load the weights of some chunks, and multiply them."""
        u = self.units
        count = u.lane_bytes // 4
        words = B.local([u.chunks * 2 * count], "uint32", "words")
        spans = range(0, u.chunks, u.per_scale or u.chunks)
        scales = [[self._scales(of, chunk + B.i64(c)) for of in rows] for c in spans] if u.per_scale else []
        for c in range(u.chunks):
            for half, of in enumerate(rows):
                self._load_words(of, chunk + B.i64(c), words, (2 * c + half) * count)
        # Compilers move loads to their first use, which is that of a scale after the products: one latency more.
        B.evaluate(tir.call_extern("int32", "__syncwarp"))
        octets = u.lane_columns // MatrixUnits.octet
        base = B.cell(self.octet + chunk * B.i64(octets) * self.apart, "octets")
        at_once = {2: 1, 4: 1, 8: 2, 16: 4}[u.packed.bits]  # words
        of_call = 32 * at_once // (u.packed.bits * MatrixUnits.octet)
        for number, start in enumerate(spans):
            sums = totals
            if u.per_scale:
                sums = B.local([u.tiles * 4], "float32", "sums")
                for i in range(u.tiles * 4):
                    B.store(sums, compat.float_const(0.0, "float32"), [B.i64(i)])
            for c in range(start, start + (u.per_scale or u.chunks)):
                for w in range(0, count, at_once):
                    octet = c * octets + w // at_once * of_call
                    low, high = (
                        tir.address_of(B.fetch(words, (2 * c + half) * count + w)) for half in range(2)
                    )
                    x = tir.address_of(B.fetch(self.held, base + self.apart * B.i64(octet)))
                    apart, tile = tir.Cast("int32", self.apart), tir.Cast("int32", self.tile_apart)
                    B.evaluate(add_products(u, tir.address_of(B.fetch(sums, 0)), low, high, x, apart, tile))
            if u.per_scale:
                self._add_scaled(totals, sums, scales[number])

    def _inside(self, chunk: Expr) -> Expr | None:
        """Return the condition that a row has a chunk, or None if it certainly has."""
        return (
            None
            if self.units.covered_chunks == self.units.row_chunks
            else chunk < B.i64(self.units.row_chunks)
        )

    def _words(self, of: _Rows) -> Buffer:
        """Return the memory of a product's weights, as words."""
        tensor = of.weights[0].words.tensor
        memory = B.flat_view(self.buffers.of(tensor))
        return memory if tensor.dtype == "uint32" else B.words_of(memory)

    def _load_words(self, of: _Rows, chunk: Expr, words: Buffer, start: int) -> None:
        u = self.units
        memory, count = self._words(of), u.lane_bytes // 4
        inside = self._inside(chunk)
        if inside is not None:
            for v in range(count):
                B.store(words, compat.const(0, "uint32"), [B.i64(start + v)])
        at = (of.words + chunk * B.i64(MatrixUnits.row_lanes)) * B.i64(count)
        with B.when(inside):
            to, source = tir.address_of(B.fetch(words, start)), tir.address_of(B.fetch(memory, at))
            B.evaluate(load_early(u.lane_bytes, to, source))

    def _scales(self, of: _Rows, chunk: Expr) -> list[Expr]:
        """Load a row's scales at a chunk: those of the groups that the lane has sums of."""
        u, weight = self.units, of.weights[0]
        assert weight.scale is not None
        lanes = 1 if u.groups == 1 else 2
        loaded: dict[object, Buffer] = {}
        inside = self._inside(chunk)
        for load, place, first, all_places in zip(
            compat.loads_in(weight.scale), weight.places, of.scales, zip(*(w.places for w in of.weights))
        ):
            held = B.local([lanes], place.tensor.dtype, "scale")
            memory = B.flat_view(self.buffers.of(place.tensor))
            together = self._scales_together(all_places)
            if inside is not None:
                for e in range(lanes):
                    B.store(held, compat.const(0, place.tensor.dtype), [B.i64(e)])
            with B.when(inside):
                size = together * item_bytes(place.tensor.dtype)
                for e in range(0, lanes, together):
                    at = first * B.i64(together) + self._group(place, chunk, e)
                    to, source = tir.address_of(B.fetch(held, e)), tir.address_of(B.fetch(memory, at))
                    B.evaluate(load_early(size, to, source))
            loaded[compat.expression_key(load)] = held
        return [self._scale(weight.scale, loaded, e) for e in range(lanes)]

    def _group(self, place: Place, chunk: Expr, e: int) -> Expr:
        """Return the element of a row that the group of a lane's sum has at a chunk."""
        u = self.units
        if place.every >= u.columns:
            return B.i64(0)
        group: Expr = B.i64(e)
        if u.groups == 4:
            group = (self.quarter & B.i64(1)) * B.i64(2) + B.i64(e)
        if place.every <= u.chunk_columns:
            per_chunk, each = u.chunk_columns // place.every, place.every // u.packed.group
            inside = group if each == 1 else group // B.i64(each)
            return chunk * B.i64(per_chunk) + (inside if u.groups > 1 else B.i64(0))
        return chunk // B.i64(place.every // u.chunk_columns)

    def _scale(self, scale: Expr, loaded: dict[object, Buffer], e: int) -> Expr:
        def visit(value: Expr) -> Expr:
            if compat.is_load(value):
                held = loaded[compat.expression_key(value)]
                dtype = compat.buffer_dtype(held)
                return convert(B.fetch(held, e), "float32" if dtype in ("float16", "bfloat16") else dtype)
            return self.eval.operation(value, visit)

        return convert(visit(scale), "float32")

    def _add_scaled(self, totals: Buffer, sums: Buffer, scales: list[list[Expr]]) -> None:
        """Add the sums of groups, times their scales, to the totals."""
        u = self.units
        for tile in range(u.tiles):
            for half in range(2):
                for e in range(2):
                    i = tile * 4 + half * 2 + e
                    into = i if u.groups == 1 else tile * 4 + half * 2
                    scale = scales[half][0 if u.groups == 1 else e]
                    value = B.fetch(totals, into) + B.fetch(sums, i) * scale
                    B.store(totals, value, [B.i64(into)])

    # -- sums of rows ------------------------------------------------------------------------------------------------
    def _results(self) -> Expr:
        return tir.address_of(B.fetch(self.held, self.units.factor_elements))

    def _meet(self) -> None:
        """Wait for the warps that share rows."""
        if self.units.slices > 1:
            B.block_barrier()
        else:
            B.evaluate(tir.call_extern("int32", "__syncwarp"))

    def _hand_over(self, totals: list[Expr]) -> None:
        """Store the sums of the warp's rows of weights, for all factors."""
        u, count = self.units, len(self.units.factors)
        each = MatrixUnits.mma_columns // u.groups
        self._meet()  # the sums of the task before were read
        for tile in range(u.tiles):
            for half in range(2):
                at = (
                    self.warp * B.i64(MatrixUnits.mma_rows)
                    + self.across
                    + B.i64(half * MatrixUnits.mma_rows // 2)
                ) * B.i64(count)
                for e in range(2 if u.groups == 1 else 1):
                    value, factor = totals[tile * 4 + half * 2 + e], B.i64(tile * each) + self.quarter
                    writes: Expr | None = None
                    if u.groups == 4:
                        value = B.cell(value, "sum")
                        value = value + B.cell(compat.shuffle_xor("float32", value, 1), "other")
                        factor = B.i64(tile * each) + (self.quarter >> B.i64(1))
                        writes = tir.EQ(self.quarter & B.i64(1), B.i64(0))
                    elif u.groups == 1:
                        factor = B.i64(tile * each + e) + self.quarter * B.i64(2)
                    if (tile + 1) * each > count:
                        writes = B.both(writes, factor < B.i64(count))
                    with B.when(writes):
                        B.evaluate(put_sum(self._results(), tir.Cast("int32", at + factor), value))
        self._meet()

    def _take(self, p: RowLoop) -> None:
        """Set the sums of the thread's row of the domain."""
        u, count = self.units, len(self.units.factors)
        place = {
            op: (product * MatrixUnits.mma_rows // 2 + neighbour, factor)
            for factor, products in enumerate(u.results)
            for product, ops in enumerate(products)
            for neighbour, op in enumerate(ops)
        }
        inside = (self.slot & B.i64(u.tile_rows - 1)) * B.i64(u.width)
        tile = self.slot >> B.i64(u.tile_rows.bit_length() - 1)

        def part(op: Operator, index: Expr) -> Expr:
            row, factor = place[op]
            at = (tile * B.i64(u.slices) + index) * B.i64(MatrixUnits.mma_rows) + inside + B.i64(row)
            return B.cell(
                get_sum(self._results(), tir.Cast("int32", at * B.i64(count) + B.i64(factor))), "part"
            )

        ops, threads = list(p.reduces), self.mapping.threads
        found = fold_partials(ops, u.slices, threads, self.lane, part, self.stage.partials_in_order)
        self._set_results(ops, found)
