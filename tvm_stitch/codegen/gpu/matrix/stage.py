# SPDX-License-Identifier: Apache-2.0
"""Emit a stage whose sums matrix units take (see ``plan.rows.matrix_units``).

A block stores the factors in shared memory once, in the order in which lanes multiply them. Then each warp multiplies
its rows of weights, and hands its sums to the threads of those rows through shared memory.
"""

from __future__ import annotations

from .... import compat
from ....compat import Buffer, Expr, tir
from ....graph.extent import is_number
from ....graph.ir import Operator
from ....plan.iteration.loops import RowLoop
from ....plan.rows.matrix_units import MatrixUnits
from ... import builder as B
from ..reduce import fold_partials
from .functions import add_products, get_sum, put_sum
from .ring import RingEmitter
from .weights import LaneRows, Scales


class MatrixStageEmitter(RingEmitter):
    """Emits a stage whose sums matrix units take."""

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
        self._place_factors()
        totals = B.local([u.tiles * 4], "float32", "totals")
        for i in range(u.tiles * 4):
            B.store(totals, compat.float_const(0.0, "float32"), [B.i64(i)])
        if u.ring:
            self._multiply_ring(rows, first_chunk, totals)
        else:
            with B.loop("serial", u.steps, "step") as step:
                chunk = B.cell(first_chunk + step * B.i64(u.chunks), "chunk")
                self._multiply(rows, chunk, totals, *self._load_step(rows, chunk))
        return [B.fetch(totals, i) for i in range(u.tiles * 4)]

    def _multiply_ring(self, rows: list[LaneRows], first_chunk: Expr, totals: Buffer) -> None:
        """Multiply all steps, whose weights arrive in the ring. Scales are loaded one step ahead."""
        u = self.units
        scales = self._load_scales(rows, first_chunk)
        with B.loop("serial", u.steps, "step") as step:
            following = tir.min(step + B.i64(1), B.i64(u.steps - 1))
            later = self._load_scales(rows, first_chunk + following * B.i64(u.chunks))
            self.copy_later(rows, first_chunk, step)
            words = self._new_words()
            self.take_step(step, words)
            chunk = B.cell(first_chunk + step * B.i64(u.chunks), "chunk")
            self._multiply(rows, chunk, totals, words, scales)
            for held, new in zip(_buffers(scales), _buffers(later)):
                for e in range(int(new.shape[0])):
                    B.store(held, B.fetch(new, e), [B.i64(e)])
        self.begin_next_task()

    def _new_words(self) -> Buffer:
        return B.whole(B.local([self.units.step_bytes // 4], "uint32", "words"))

    def _load_scales(self, rows: list[LaneRows], chunk: Expr) -> list[list[Scales]]:
        """Load the scales of some chunks, for each sum that is multiplied by one, of both rows."""
        u = self.units
        if not u.per_scale:
            return []
        return [[self._scales(of, chunk + B.i64(c)) for of in rows] for c in range(0, u.chunks, u.per_scale)]

    def _load_step(self, rows: list[LaneRows], chunk: Expr) -> tuple[Buffer, list[list[Scales]]]:
        """Load the weights of some chunks into registers, and their scales."""
        u, count = self.units, self.units.lane_bytes // 4
        words = self._new_words()
        scales = self._load_scales(rows, chunk)
        for c in range(u.chunks):
            for half, of in enumerate(rows):
                self._load_words(of, chunk + B.i64(c), words, (2 * c + half) * count)
        # Compilers move loads to their first use, which is that of a scale after the products: one latency more.
        B.evaluate(tir.call_extern("int32", "__syncwarp"))
        return words, scales

    def _multiply(
        self, rows: list[LaneRows], chunk: Expr, totals: Buffer, words: Buffer, held: list[list[Scales]]
    ) -> None:
        """Multiply the weights of some chunks."""
        u, count = self.units, self.units.lane_bytes // 4
        scales = [[self._scale_values(of, each) for of, each in zip(rows, pair)] for pair in held]
        spans = range(0, u.chunks, u.per_scale or u.chunks)
        zeros = [
            [[self._own_zero(of, chunk + B.i64(c), part) for of in rows] for part in range(u.parts)]
            for c in range(u.chunks)
        ]
        octets = u.lane_columns // MatrixUnits.octet
        base = B.cell(self.octet + chunk * B.i64(octets) * self.apart, "octets")
        at_once = {2: 1, 4: 1, 8: 2, 16: 4}[u.packed.bits]  # words
        of_call = 32 * at_once // (u.packed.bits * MatrixUnits.octet)
        of_part = count // u.parts
        for number, start in enumerate(spans):
            for part in range(u.parts):
                sums = totals
                if u.per_scale:
                    sums = B.local([u.tiles * 4], "float32", "sums")
                    for i in range(u.tiles * 4):
                        B.store(sums, compat.float_const(0.0, "float32"), [B.i64(i)])
                into = tir.address_of(B.fetch(sums, 0))
                for c in range(start, start + (u.per_scale or u.chunks)):
                    for w in range(part * of_part, (part + 1) * of_part, at_once):
                        octet = c * octets + w // at_once * of_call
                        low, high = (
                            tir.address_of(B.fetch(words, (2 * c + half) * count + w)) for half in range(2)
                        )
                        x = tir.address_of(B.fetch(self.held, base + self.apart * B.i64(octet)))
                        apart, tile = tir.Cast("int32", self.apart), tir.Cast("int32", self.tile_apart)
                        B.evaluate(add_products(u, into, low, high, *zeros[c][part], x, apart, tile))
                if u.per_scale:
                    own = [scale[part :: u.parts] for scale in scales[number]]
                    self._add_scaled(totals, sums, own)

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
        folded = fold_partials(ops, u.slices, threads, self.lane, part, self.stage.partials_in_order)
        self._set_results(ops, folded)


def _buffers(scales: list[list[Scales]]) -> list[Buffer]:
    return [buffer for pair in scales for each in pair for buffer in each.values()]
