# SPDX-License-Identifier: Apache-2.0
"""The rows of weights that a lane has: loads of words, scales and zero points, and lines fetched ahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .... import compat
from ....compat import Buffer, Expr, tir
from ....graph.dtype import item_bytes
from ....graph.extent import as_expr
from ....plan.rows.fields import PackedWeight, Place
from ....plan.rows.matrix_units import MatrixUnits
from ... import builder as B
from ...evaluator import convert
from ..stage import one_step
from .factors import FactorEmitter
from .functions import fetch_line, load_early

Scales = dict[object, Buffer]
"""The registers that hold the loads of a scale's expression."""


@dataclass(frozen=True)
class LaneRows:
    """The rows of weights of a lane in one half of a tile.

    Attributes:
        weights: of the rows' product.
        row: of the domain.
        neighbour: which of the product's neighbouring rows.
        words: the lane's first vector of words.
        scales: of each place that the scale reads, the first vector of the row's elements.
        zeros: of each place that the zero point reads, the first of the row's elements.
    """

    weights: tuple[PackedWeight, ...]
    row: Expr
    neighbour: Expr
    words: Expr
    scales: tuple[Expr, ...]
    zeros: tuple[Expr, ...] = ()


class WeightEmitter(FactorEmitter):
    """Emits the loads of a lane's weights."""

    def load_ahead(self) -> None:
        """Fetch the first weights into the second-level cache, before the barrier and the factors of the products."""
        u, stage = self.units, self.stage
        if not u.ahead:
            return
        with self._ahead() as worker:
            self.first_row = worker * B.i64(self.mapping.rows_per_block)
            rows, chunk = self._lane_rows()
            with B.when(worker < B.i64(stage.stride)):
                self._fetch(rows, chunk, min(u.ahead, u.steps * u.chunks))

    @contextmanager
    def _ahead(self) -> Iterator[Expr]:
        """Enter what goes before the barrier, and give the number of the block among those that share the stage."""
        blocks = self.grid.blocks
        worker = tir.floormod(self.grid_block + B.i64(blocks - self.stage.offset), B.i64(blocks))
        with B.loop("serial", one_step(worker), "ahead"):
            yield worker

    def _fetch(self, rows: list[LaneRows], chunk: Expr, chunks: int) -> None:
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
                with B.when(few):
                    B.evaluate(fetch_line(tir.address_of(B.fetch(memory, at))))

    def _lane_rows(self) -> tuple[list[LaneRows], Expr]:
        """Return the rows of weights of a lane, and the first chunk of its warp."""
        u = self.units
        part = B.cell(self.warp & B.i64(u.slices - 1), "part")
        tile = B.cell(self.warp >> B.i64(u.slices.bit_length() - 1), "tile")
        first_chunk = B.cell(part * B.i64(u.steps * u.chunks), "first_chunk")
        return [self._rows_of(half, tile) for half in range(2)], first_chunk

    def _rows_of(self, half: int, tile: Expr) -> LaneRows:
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
        zeros = [
            B.cell(self._element(places, row, neighbour), "zeros")
            for places in zip(*(w.zero_places for w in weights))
        ]
        return LaneRows(weights, row, neighbour, vectors, tuple(scales), tuple(zeros))

    def _scales_together(self, places: tuple[Place, ...]) -> int:
        """Return how many neighbouring elements a lane loads of a scale at once: those of its sums' groups."""
        u, count = self.units, self._lane_scales()
        even = all(n % count == 0 for place in places for n in (place.base, place.stride))
        few = count * item_bytes(places[0].tensor.dtype) <= 16
        return count if places[0].every == u.packed.group and even and few else 1

    def _lane_scales(self) -> int:
        """Return how many scales of a row's chunk a lane multiplies sums by."""
        return self.units.parts * (1 if self.units.groups == 1 else 2)

    @staticmethod
    def _element(places: tuple[Place, ...], row: Expr, neighbour: Expr) -> Expr:
        """Return the first element of a lane's row of neighbouring rows."""
        first = places[0]
        at = row * B.i64(first.stride) + B.i64(first.base)
        return at + neighbour * B.i64(places[1].base - first.base) if len(places) > 1 else at

    def _inside(self, chunk: Expr) -> Expr | None:
        """Return the condition that a row has a chunk, or None if it certainly has."""
        return (
            None
            if self.units.covered_chunks == self.units.row_chunks
            else chunk < B.i64(self.units.row_chunks)
        )

    def _words(self, of: LaneRows) -> Buffer:
        """Return the memory of a product's weights, as words."""
        tensor = of.weights[0].words.tensor
        memory = B.flat_view(self.buffers.of(tensor))
        return memory if tensor.dtype == "uint32" else B.words_of(memory)

    def _load_words(self, of: LaneRows, chunk: Expr, words: Buffer, start: int) -> None:
        u = self.units
        memory, count = self._words(of), u.lane_bytes // 4
        inside = self._inside(chunk)
        if inside is not None:
            for v in range(count):
                B.store(words, compat.const(0, "uint32"), [B.i64(start + v)])
        at = (of.words + chunk * B.i64(MatrixUnits.row_lanes)) * B.i64(count)
        vector = min(16, u.lane_bytes)
        with B.when(inside):
            for v in range(0, count, vector // 4):
                to = tir.address_of(B.fetch(words, start + v))
                B.evaluate(load_early(vector, to, tir.address_of(B.fetch(memory, at + B.i64(v)))))

    def _scales(self, of: LaneRows, chunk: Expr) -> Scales:
        """Load a row's scales at a chunk: for each group that the lane has sums of, those of its parts."""
        weight = of.weights[0]
        assert weight.scale is not None
        lanes = self._lane_scales()
        loaded: Scales = {}
        inside = self._inside(chunk)
        for load, place, first, all_places in zip(
            compat.loads_in(weight.scale), weight.places, of.scales, zip(*(w.places for w in of.weights))
        ):
            held = B.whole(B.local([lanes], place.tensor.dtype, "scale"))
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
        return loaded

    def _scale_values(self, of: LaneRows, loaded: Scales) -> list[Expr]:
        """Return the scales that a row's sums are multiplied by, from their loads."""
        scale = of.weights[0].scale
        assert scale is not None
        return [self._scale(scale, loaded, e) for e in range(self._lane_scales())]

    def _own_zero(self, of: LaneRows, chunk: Expr, part: int) -> Expr:
        """Return the zero point of a part of a lane's columns of a chunk, 0 if there is none but a constant."""
        u, weight = self.units, of.weights[0]
        if weight.own_zero is None:
            return compat.const(0, "int32")
        if u.covered_chunks > u.row_chunks:
            chunk = tir.min(chunk, B.i64(u.row_chunks - 1))
        column = chunk * B.i64(u.chunk_columns) + self.quarter * B.i64(u.lane_columns)
        column = column + B.i64(part * u.lane_columns // u.parts)
        loaded: dict[object, Expr] = {}
        for load, place, first in zip(compat.loads_in(weight.own_zero), weight.zero_places, of.zeros):
            memory = B.flat_view(self.buffers.of(place.tensor))
            at = first if place.every >= u.columns else first + column // B.i64(place.every)
            loaded[compat.expression_key(load)] = compat.load(memory, [at])

        def visit(value: Expr) -> Expr:
            if compat.is_load(value):
                return loaded[compat.expression_key(value)]
            if compat.kind(value) in ("Var", "SizeVar"):
                return column if compat.same_var(value, self.domain.column) else value
            return self.eval.operation(value, visit)

        return B.cell(convert(visit(weight.own_zero), "int32"), "zero")

    def _group(self, place: Place, chunk: Expr, e: int) -> Expr:
        """Return the element of a row that the group of a lane's sum has at a chunk."""
        u = self.units
        if place.every >= u.columns:
            return B.i64(0)
        group: Expr = B.i64(e)
        if u.groups == 4:
            group = (self.quarter & B.i64(1)) * B.i64(2 * u.parts) + B.i64(e)
        if place.every <= u.chunk_columns:
            per_chunk, each = u.chunk_columns // place.every, place.every // u.packed.group
            inside = group if each == 1 else group // B.i64(each)
            return chunk * B.i64(per_chunk) + (inside if u.groups > 1 else B.i64(0))
        return chunk // B.i64(place.every // u.chunk_columns)

    def _scale(self, scale: Expr, loaded: Scales, e: int) -> Expr:
        def visit(value: Expr) -> Expr:
            if compat.is_load(value):
                held = loaded[compat.expression_key(value)]
                dtype = compat.buffer_dtype(held)
                return convert(B.fetch(held, e), "float32" if dtype in ("float16", "bfloat16") else dtype)
            return self.eval.operation(value, visit)

        return convert(visit(scale), "float32")
