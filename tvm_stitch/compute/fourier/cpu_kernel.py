# SPDX-License-Identifier: Apache-2.0
"""A fast Fourier transform of rows on a CPU in one kernel: a row passes all stages while a core's cache holds it.

The stages are Stockham's: each sorts its results, so that no stage of its own permutes them. A stage of radix r behind
stages of s numbers reads r vectors at equal distances and transforms them in registers (``butterflies.py``). It
multiplies them by their twiddles, and stores them. Lanes run along the s numbers, which have the same twiddles, if
these fill vectors. Else they run along all butterflies, and results are stored one by one. Ends that fill no vector are
computed again with numbers of the vector before.

Two real numbers are one complex number. One more sweep separates their spectra behind the stages, or joins them before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import compat
from ...codegen import builder as B
from ...codegen.cpu.lanes import LaneWriter
from ...codegen.cpu.tasks import SERIAL_WHERE
from ...codegen.emit import sound_for_cpu
from ...compat import Buffer, Expr, PrimFunc, T, tir
from ...graph.extent import Extent, as_expr
from ..cpu.emit import compute_func
from .butterflies import Number, butterfly
from .transform import Transform, radices_of


@dataclass(frozen=True)
class Layout:
    """Memory of complex numbers outside of the kernel.

    Attributes:
        pairs_in: whether the input has real and imaginary parts side by side, in rows of twice the length.
        pairs_out: whether the result has them so.
    """

    pairs_in: bool = False
    pairs_out: bool = False


@dataclass(frozen=True)
class _Stage:
    """A stage of radix r for ``count`` groups of ``behind`` numbers. Its twiddles begin at ``table``."""

    radix: int
    behind: int
    count: int
    lanes: int
    flat: bool
    table: int


def _stages(length: int, lanes: int) -> list[_Stage]:
    stages, behind, rest, table = [], 1, length, 0
    for radix in radices_of(length, lanes):
        count = rest // radix
        fit = lanes if behind >= lanes else behind if behind in (4, 8) else 0
        flat = not fit
        if flat:
            fit = lanes
        stages.append(_Stage(radix, behind, count, fit, flat, table))
        if count > 1:
            table += 2 * (radix - 1) * count * (behind if flat else 1)
        behind, rest = behind * radix, count
    return stages


def _table_size(length: int, lanes: int) -> int:
    last = _stages(length, lanes)[-1]
    return last.table + (2 * (last.radix - 1) * last.behind if last.flat else 0)


def twiddles(transform: Transform, lanes: int) -> np.ndarray:
    """Return the constants that the kernel reads, in float64: those of all stages, then those of the sweep.

    Args:
        transform: the transform.
        lanes: the elements of a vector.
    """
    length, parts = transform.complex_length, []
    for stage in _stages(length, lanes):
        if stage.count == 1:
            continue
        order = stage.radix * stage.count
        exponents = np.outer(np.arange(1, stage.radix), np.arange(stage.count))
        cos, sin = _roots(exponents, order, transform.sign)
        both = np.stack([cos, sin], 1)  # <radix - 1, 2, count>
        if stage.flat:
            both = np.repeat(both, stage.behind, 2)
        else:
            both = both.transpose(2, 0, 1)
        parts.append(both.reshape(-1))
    if transform.kind != "complex":
        scale = transform.scale * (0.5 if transform.kind == "half" else 1.0)
        cos, sin = _roots(np.arange(length), transform.length, transform.sign)
        parts += [cos * scale, sin * scale]
    return np.concatenate(parts) if parts else np.zeros(1)


def _roots(exponents: np.ndarray, order: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    angle = 2 * np.pi * (exponents.astype("int64") % order) / order
    return np.cos(angle), sign * np.sin(angle)


def fourier_kernel(
    transform: Transform, layout: Layout, rows: Extent, dtype: str, lanes: int, serial_numbers: int
) -> PrimFunc:
    """Return the scheduled PrimFunc of a transform of rows.

    Its parameters are the input, the constants of :func:`twiddles`, and the result. Complex numbers are two parameters
    ``<rows, count>``, or one ``<rows, 2 * count>`` of pairs. Real numbers are one parameter ``<rows, length>``.

    Args:
        transform: a transform that suits the kernel.
        layout: the memory of complex numbers.
        rows: the number of rows, which may be symbolic.
        dtype: float32 or float64.
        lanes: the elements of a vector.
        serial_numbers: numbers of all rows up to which one thread transforms them.
    """
    emitter = _Emitter(transform, layout, as_expr(rows), dtype, lanes)
    with B.kernel() as body:
        emitter.emit(serial_numbers)
    return sound_for_cpu(compute_func(emitter.params, body[0]))


class _Numbers:
    """Complex numbers in memory: of a row of two buffers, or of pairs in one."""

    def __init__(self, buffers: Sequence[Buffer], lead: Sequence[Expr]):
        self.buffers, self.lead = buffers, list(lead)

    def part(self, part: int, index: Expr) -> Expr:
        """Return the real or imaginary part of a number."""
        if len(self.buffers) == 1:
            return B.fetch(self.buffers[0], *self.lead, index * B.i64(2) + B.i64(part))
        return B.fetch(self.buffers[part], *self.lead, index)

    def store(self, lanes: LaneWriter, index: Expr, value: Number) -> None:
        """Store a number for each lane."""
        for part, each in enumerate(value):
            if len(self.buffers) == 1:
                lanes.store(self.buffers[0], each, [*self.lead, index * B.i64(2) + B.i64(part)])
            else:
                lanes.store(self.buffers[part], each, [*self.lead, index])


class _Emitter:
    def __init__(self, transform: Transform, layout: Layout, rows: Expr, dtype: str, lanes: int):
        self.transform, self.layout, self.rows, self.dtype, self.lanes = transform, layout, rows, dtype, lanes
        self.length = transform.complex_length
        self.stages = _stages(self.length, lanes)
        kind, outside = transform.kind, transform.length if transform.kind == "complex" else transform.half
        self.inputs = (
            [self._buffer(transform.length, "x")]
            if kind == "half"
            else self._numbers(outside, "x", layout.pairs_in)
        )
        self.table = tir.decl_buffer([as_expr(len(twiddles(transform, lanes)))], dtype, "table")
        self.results = (
            [self._buffer(transform.length, "y")]
            if kind == "real"
            else self._numbers(outside, "y", layout.pairs_out)
        )
        self.params = [*self.inputs, self.table, *self.results]

    def _buffer(self, count: int, name: str) -> Buffer:
        return tir.decl_buffer([self.rows, as_expr(count)], self.dtype, name)

    def _numbers(self, count: int, name: str, pairs: bool) -> list[Buffer]:
        if pairs:
            return [self._buffer(2 * count, name)]
        return [self._buffer(count, f"{name}_real"), self._buffer(count, f"{name}_imaginary")]

    def emit(self, serial_numbers: int) -> None:
        """Emit the kernel."""
        few = tir.LE(self.rows * B.i64(self.transform.length), B.i64(serial_numbers))
        known = compat.int_value(self.rows)
        serial = known is not None and known * self.transform.length <= serial_numbers
        deciding = known is None
        with (
            T.attr(compat.const(0, "int32"), SERIAL_WHERE, few) if deciding else nullcontext(),
            B.loop("serial" if serial else "parallel", self.rows if known is None else known, "row") as row,
        ):
            self._row(row)

    def _row(self, row: Expr) -> None:
        kind, stages = self.transform.kind, self.stages
        given, result = _Numbers(self.inputs, [row]), _Numbers(self.results, [row])
        between = len(stages) - (kind == "complex")
        kept = [self._scratch(f"kept{i}") for i in range(min(2, between))]
        source, at = given, 0
        if kind == "real":
            source, at = kept[0], 1
            self._joined(given, source)
        for number, stage in enumerate(stages):
            last = number == len(stages) - 1
            to = result if last and kind != "half" else kept[at % 2]
            self._stage(stage, source, to, last)
            source, at = to, at + 1
        if kind == "half":
            self._separated(source, result)

    def _scratch(self, name: str) -> _Numbers:
        return _Numbers([B.stack([self.length], self.dtype, f"{name}_{part}") for part in "ri"], [])

    def _constant(self, value: float) -> Expr:
        return compat.float_const(value, self.dtype)

    # -- stages ----------------------------------------------------------------------------------------------------
    def _stage(self, stage: _Stage, source: _Numbers, to: _Numbers, last: bool) -> None:
        behind, radix, count = stage.behind, stage.radix, stage.count
        scale = self.transform.scale if last and self.transform.kind == "complex" else 1.0
        distance = B.i64(count * behind)

        def emit(
            lanes: LaneWriter, at: Expr, result: Callable[[int], Expr], twiddle: Callable[[int], Expr]
        ) -> None:
            def bound(value: Expr) -> Expr:
                return lanes.bind(value, "v")

            values = []
            for i in range(radix):
                index = at + B.i64(i) * distance
                values.append((bound(source.part(0, index)), bound(source.part(1, index))))
            results = butterfly(values, self.transform.sign, bound, self._constant)
            for i, (a, b) in enumerate(results):
                if i and count > 1:
                    cos, sin = (B.fetch(self.table, twiddle(2 * (i - 1) + part)) for part in (0, 1))
                    cos, sin = bound(cos), bound(sin)
                    a, b = a * cos - b * sin, a * sin + b * cos
                if scale != 1.0:
                    a, b = a * self._constant(scale), b * self._constant(scale)
                to.store(lanes, result(i), (a, b))

        if stage.flat:
            everything = count * behind
            with _Vectors(everything, stage.lanes) as (lanes, first):
                at = first + lanes.lane
                group = tir.floordiv(at, B.i64(behind))
                base = at + group * B.i64(behind * (radix - 1))
                emit(
                    lanes,
                    at,
                    lambda i: base + B.i64(behind * i),
                    lambda part: B.i64(stage.table + part * everything) + at,
                )
            return
        with B.loop("serial", count, "group") as group, _Vectors(behind, stage.lanes) as (lanes, first):
            at = first + lanes.lane
            emit(
                lanes,
                group * B.i64(behind) + at,
                lambda i: group * B.i64(behind * radix) + at + B.i64(behind * i),
                lambda part: B.i64(stage.table + part) + group * B.i64(2 * (radix - 1)),
            )

    # -- real numbers ----------------------------------------------------------------------------------------------
    def _sweep(self, emit: Callable[[LaneWriter, Expr, Expr, Expr], None]) -> None:
        """Emit a sweep over all numbers but the first one: their positions, and constants there."""
        table = _table_size(self.length, self.lanes)
        with _Vectors(self.length - 1, min(self.lanes, self.length - 1)) as (lanes, first):
            at = first + lanes.lane + B.i64(1)
            cos = lanes.bind(B.fetch(self.table, B.i64(table) + at), "cos")
            sin = lanes.bind(B.fetch(self.table, B.i64(table + self.length) + at), "sin")
            emit(lanes, at, cos, sin)

    def _pair(self, lanes: LaneWriter, source: _Numbers, at: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """Return sums and differences of the parts of a number, and of the one at the mirrored position."""
        other = B.i64(self.length) - at
        a, b, c, d = (lanes.bind(source.part(part, index), "x") for index in (at, other) for part in (0, 1))
        return tuple(lanes.bind(each, "x") for each in (a + c, a - c, b + d, b - d))

    def _separated(self, source: _Numbers, result: _Numbers) -> None:
        """Emit half the spectrum of real numbers, given the transform of their pairs."""
        scale, half = self._constant(self.transform.scale), self._constant(self.transform.scale * 0.5)
        one = LaneWriter(1)
        a, b = (one.bind(source.part(part, B.i64(0)), "first") for part in (0, 1))
        result.store(one, B.i64(0), ((a + b) * scale, self._constant(0.0)))
        result.store(one, B.i64(self.length), ((a - b) * scale, self._constant(0.0)))

        def emit(lanes: LaneWriter, at: Expr, cos: Expr, sin: Expr) -> None:
            real, less, imaginary, other = self._pair(lanes, source, at)
            value = real * half + imaginary * cos + less * sin, other * half + imaginary * sin - less * cos
            result.store(lanes, at, value)

        self._sweep(emit)

    def _joined(self, given: _Numbers, to: _Numbers) -> None:
        """Emit the spectrum of pairs of real numbers, given half the spectrum of the numbers."""
        scale = self._constant(self.transform.scale)
        one = LaneWriter(1)
        a = one.bind(given.part(0, B.i64(0)) * scale, "first")
        b = one.bind(given.part(0, B.i64(self.length)) * scale, "last")
        to.store(one, B.i64(0), (a + b, a - b))

        def emit(lanes: LaneWriter, at: Expr, cos: Expr, sin: Expr) -> None:
            real, less, imaginary, other = self._pair(lanes, given, at)
            value = (
                real * scale - (less * sin + imaginary * cos),
                other * scale + (less * cos - imaginary * sin),
            )
            to.store(lanes, at, value)

        self._sweep(emit)


class _Vectors:
    """A loop over vectors of lanes. The last one begins early enough to be full."""

    def __init__(self, count: int, lanes: int):
        self.count, self.lanes = count, lanes
        self.loop = B.loop("serial", -(-count // lanes), "vector")

    def __enter__(self) -> tuple[LaneWriter, Expr]:
        first = self.loop.__enter__() * B.i64(self.lanes)
        if self.count % self.lanes:
            first = tir.min(first, B.i64(self.count - self.lanes))
        return LaneWriter(self.lanes), first

    def __exit__(self, *problem: Any) -> Any:
        return self.loop.__exit__(*problem)
