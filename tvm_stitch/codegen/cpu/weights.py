# SPDX-License-Identifier: Apache-2.0
"""Rows of weights: sums over chunks, whose vectors hold one field of neighbouring words (see ``plan.cpu.weights``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ... import compat
from ...compat import Buffer, Expr, tir
from ...graph.dtype import compute_dtype, item_bytes
from ...graph.extent import Extent, as_expr, ceildiv, flatten
from ...graph.ir import Access, Operator
from ...plan.cpu.weights import Chunks, WeightLanes
from ...plan.iteration.alignment import Key
from ...plan.iteration.domain import Point
from ...plan.iteration.loops import Leaf, RowLoop
from ...plan.kernel import Stage
from ...repairs.tir.arithmetic import HOST
from .. import builder as B
from ..combine import accumulator_dtype, identity
from ..evaluator import convert, input_indices
from .base import accumulator, fold, merged
from .columns import ColumnEmitter, count_of
from .index_context import ContextEvaluator, Coordinate, IndexContext
from .lanes import LaneWriter, from_held, held, to_held
from .tasks import times


class ChunkCoordinate(Coordinate):
    """A column as ``start + ((chunk * steps + step) * lanes + lane) * fields + field``."""

    def __init__(self, chunks: Chunks):
        super().__init__("col", chunks.columns, chunks.columns)
        self.chunks = chunks
        self.step, self.vector_lane, self.field = (
            tir.Var(f"col_{name}", "int64") for name in ("step", "lane", "field")
        )

    @property
    def symbolic(self) -> Expr:
        """The coordinate in its own variables."""
        c = self.chunks
        lane = (self.number * B.i64(c.steps) + self.step) * B.i64(c.lanes) + self.vector_lane
        return B.i64(c.start) + lane * B.i64(c.fields) + self.field

    @property
    def axes(self) -> list[tuple[tir.Var, Extent]]:
        """The coordinate's variables with their extents."""
        c = self.chunks
        return [
            (self.number, c.count),
            (self.step, c.steps),
            (self.vector_lane, c.lanes),
            (self.field, c.fields),
        ]

    def bind_ranges(self, analyzer: compat.Analyzer, start: int = 0, extent: Extent | None = None) -> None:
        """Bind the ranges of the variables in an analyzer."""
        for var, length in self.axes:
            compat.bind_range(analyzer, var, as_expr(length))

    def at(self, chunk: Expr, step: int, lane: Expr, field: int) -> Expr:
        """Move to a position and return its coordinate."""
        self.values = {
            self.number: chunk, self.step: B.i64(step), self.vector_lane: lane, self.field: B.i64(field)
        }  # fmt: skip
        return compat.substitute(self.symbolic, self.values)


class Factored(ContextEvaluator):
    """An evaluator that knows the factors of the products that it builds."""

    def __init__(self, *args: object, **options: object):
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.products: dict[object, tuple[Expr, ...]] = {}

    def factors(self, value: Expr) -> tuple[Expr, ...]:
        """Return the factors of a value, or the value alone if it is no product."""
        return self.products.get(compat.expression_key(value), (value,))

    def product(self, factors: Sequence[Expr]) -> Expr:
        """Return the product of factors, and remember them."""
        result = factors[0]
        for factor in factors[1:]:
            result = HOST.binary(tir.Mul, result, factor)
        self.products[compat.expression_key(result)] = tuple(factors)
        return result

    def operation(self, e: Expr, visit: Callable[[Expr], Expr]) -> Expr:
        """Rebuild an operation over visited operands."""
        operands: list[Expr] = []

        def noted(part: Expr) -> Expr:
            operands.append(visit(part))
            return operands[-1]

        value = super().operation(e, noted)
        if compat.kind(e) == "Mul" and len(operands) == 2 and compat.dtype_of(value) == "float32":
            key = compat.expression_key(value)
            self.products[key] = (*self.factors(operands[0]), *self.factors(operands[1]))
        return value


class WeightEmitter(ColumnEmitter):
    """Emits rows of weights. Each chunk of columns adds one vector to the partial sums of every reduction."""

    eval: Factored

    def __init__(self, stage: Stage):
        super().__init__(stage)
        assert self.mapping.weights is not None
        self.plan: WeightLanes = self.mapping.weights
        self.prepared: dict[Leaf | Key, int] = {each: i for i, each in enumerate(self.plan.prepared)}
        self.in_order: Buffer | None = None
        self.chunks: Chunks | None = None
        self.position: tuple[Expr, int, int] = (B.i64(0), 0, 0)
        self.shared: dict[Leaf, Expr] = {}
        self.alike: set[Buffer] = set()
        self.column: ChunkCoordinate | None = None
        self.first: Expr = B.i64(0)
        self.totals: list[Buffer] = []

    def evaluator(self, row: Expr) -> Factored:
        """Return an evaluator of the given row."""
        return Factored(self.al, row, self, self.math)

    def emit(self) -> None:
        """Emit the factors that rows share, then tasks of neighbouring rows."""
        self._prepare()
        super().emit()

    # -- factors that rows share ---------------------------------------------------------------------------------------
    def _prepare(self) -> None:
        """Store the factors that all rows share in the order in which chunks read them."""
        prepared, self.prepared = self.prepared, {}
        if not prepared:
            return
        self.in_order = B.stack([len(prepared) * int(self.plan.sums.columns)], "float32", "in_order")
        self.eval = self.evaluator(B.i64(0))
        for chunks in self.plan.chunks:
            with times("serial", chunks.count, "chunk") as chunk:
                for lanes in self._vectors(chunks, chunk):
                    for each, number in prepared.items():
                        value = convert(self._value_of(each), "float32")
                        lanes.store(self.in_order, value, [self._slot(number, len(prepared), lanes)])
        self.prepared = prepared

    def _value_of(self, each: Leaf | Key) -> Expr:
        """Return a factor at the current column."""
        first, point = each
        if isinstance(first, Operator):
            return self.eval.value((first, point))
        where = [self.eval.localize(i) for i in input_indices(self.al, first, point)]
        return convert(compat.load(first.buffer, where), compute_dtype(first.dtype))

    def _slot(self, number: int, count: int, lanes: LaneWriter) -> Expr:
        """Return the position of the current vector's element of one of ``count`` factors."""
        c = self.chunks
        assert c is not None
        chunk, step, field = self.position
        inside = ((number * c.steps + step) * c.fields + field) * c.lanes
        return chunk * B.i64(count * c.columns) + B.i64(c.start * count + inside) + lanes.lane

    def _in_order(self, each: Leaf | Key) -> Expr | None:
        """Return a factor that all rows share at the current column, or None for another value."""
        if each not in self.prepared or self.in_order is None or self.lanes is None:
            return None
        return compat.load(self.in_order, [self._slot(self.prepared[each], len(self.prepared), self.lanes)])

    # -- Reader --------------------------------------------------------------------------------------------------------
    def kept(self, key: Key) -> Expr | None:
        """Return the value if all rows share it."""
        shared = self._in_order(key)
        return super().kept(key) if shared is None else shared

    def input(self, access: Access, point: Point) -> Expr | None:
        """Return the input's element. Vectors of a chunk that read the same elements share one load."""
        leaf = access.tensor, point
        if self.chunks is None or self.lanes is None or not point.per_column:
            return super().input(access, point)
        in_order = self._in_order(leaf)
        if in_order is not None:
            return in_order
        if leaf in self.shared:
            return self.shared[leaf]
        every, c = self.plan.repeats.get(leaf, 0), self.chunks
        if every <= c.fields or c.lanes == 1:
            value = super().input(access, point)
        else:
            value = self._spread(leaf, every)
        assert value is not None
        if every >= (c.vector if c.steps == 1 else c.columns) or (every >= c.fields and c.steps == 1):
            self.shared[leaf] = value
            self.alike |= {compat.load_buffer(e) for e in compat.parts(value) if compat.is_load(e)}
        return value

    def _spread(self, leaf: Leaf, every: int) -> Expr:
        """Load elements that ``every`` neighbouring columns read, and give each of their lanes its own."""
        (tensor, point), lanes, c = leaf, self.lanes, self.chunks
        assert lanes is not None and c is not None
        dtype = compute_dtype(tensor.dtype)
        count = c.vector // every
        where = [self.eval.localize(i) for i in input_indices(self.al, tensor, point)]
        if count <= 1:
            here = [lanes.at(i, B.i64(0)) for i in where]
            return lanes.broadcast(convert(compat.load(tensor.buffer, here), dtype), tensor.name)
        first = lanes.at(flatten(where, tensor.shape), B.i64(0))
        some = compat.load(B.flat_view(tensor.buffer), [tir.Ramp(first, B.i64(1), count)])
        if tensor.dtype != dtype:
            some = tir.Cast(f"{dtype}x{count}", some)
        order = [compat.const(lane * count // c.lanes, "int32") for lane in range(c.lanes)]
        buffer = lanes.buffer(dtype, tensor.name)
        B.store(
            buffer, tir.Shuffle([some] * (c.lanes // count), order), [tir.Ramp(B.i64(0), B.i64(1), c.lanes)]
        )
        return compat.load(buffer, [lanes.lane])

    def bind(self, value: Expr, name: str) -> Expr:
        """Bind a value, or the factors of a product if chunks are scaled once."""
        if self.lanes is None or self.chunks is None or not self.plan.scaled_once:
            return super().bind(value, name)
        factors = self.eval.factors(value)
        if len(factors) == 1:
            return super().bind(value, name)
        return self.eval.product([super(WeightEmitter, self).bind(factor, name) for factor in factors])

    # -- passes --------------------------------------------------------------------------------------------------------
    def _pass(self, p: RowLoop) -> None:
        if p is not self.plan.sums:
            super()._pass(p)
            return
        for key in p.row_values:
            self.eval.bind_row(key)
        accumulators = self._started(p)
        for chunks in self.plan.chunks[1 if self.plan.block else 0 :]:
            with times("serial", chunks.count, "chunk") as chunk:
                self._chunk(p, accumulators, chunks, chunk)
        for op, acc in zip(p.reduces, accumulators, strict=True):
            total = from_held(fold(op, acc, self.plan.lanes), accumulator_dtype(op))
            self.eval.set_row_value((op, self.al.row_point), total)

    def before_rows(self, first: Expr, count: Extent) -> None:
        """Walk the blocks of the first chunks. All rows of the task take a block before the next one."""
        p, block, chunks = self.plan.sums, self.plan.block, self.plan.chunks[0]
        if not block:
            return
        size = self.mapping.rows_per_task * self.plan.lanes
        self.first = first
        self.totals = [accumulator(op, size, "totals") for op in p.reduces]
        with times("serial", count, "r") as r:
            for op, total in zip(p.reduces, self.totals, strict=True):
                LaneWriter(self.plan.lanes).fill(total, to_held(identity(op)), r * B.i64(self.plan.lanes))
        with (
            times("serial", ceildiv(chunks.count, block), "block") as number,
            times("serial", count, "r") as r,
        ):
            self.ready = set()
            self.eval = self.evaluator(first + r)
            for key in p.row_values:
                self.eval.bind_row(key)
            accumulators = self._started(p)
            start = number * B.i64(block)
            with times("serial", count_of(chunks.count, block, start), "chunk") as chunk:
                self._chunk(p, accumulators, chunks, start + chunk)
            lanes = LaneWriter(self.plan.lanes)
            for total, acc in zip(self.totals, accumulators, strict=True):
                at = r * B.i64(self.plan.lanes) + lanes.lane
                lanes.store(total, compat.load(acc, [lanes.lane]), [at])

    def _started(self, p: RowLoop) -> list[Buffer]:
        """Return a vector of partial sums for each reduction, with what earlier blocks added."""
        lanes, sums = LaneWriter(self.plan.lanes), []
        for i, op in enumerate(p.reduces):
            acc = accumulator(op, self.plan.lanes, "acc")
            if self.plan.block:
                at = (self.eval.row - self.first) * B.i64(self.plan.lanes) + lanes.lane
                lanes.store(acc, compat.load(self.totals[i], [at]), [lanes.lane])
            else:
                lanes.fill(acc, to_held(identity(op)))
            sums.append(acc)
        return sums

    def _chunk(self, p: RowLoop, accumulators: list[Buffer], chunks: Chunks, chunk: Expr) -> None:
        """Add the products of a chunk's columns to the partial sums."""
        vectors = chunks.steps * chunks.fields
        partial: dict[Operator, Buffer] = {}
        for number, lanes in enumerate(self._vectors(chunks, chunk)):
            if number == 0:
                self._fetch_ahead(chunks, chunk)
            for op, acc in zip(p.reduces, accumulators, strict=True):
                value = self.eval.operand(op)
                factors = self.eval.factors(value) if self.plan.scaled_once and vectors > 1 else ()
                shared = [f for f in factors if self._is_alike(f)]
                if not shared or len(shared) == len(factors):
                    _add(op, lanes, acc, value)
                    continue
                value = self.eval.product([f for f in factors if f not in shared])
                if number == 0:
                    partial[op] = lanes.buffer(held(accumulator_dtype(op)), "chunk")
                    lanes.store(partial[op], to_held(value), [lanes.lane])
                else:
                    _add(op, lanes, partial[op], value)
                if number == vectors - 1:
                    whole = compat.load(partial[op], [lanes.lane])
                    _add(op, lanes, acc, self.eval.product([whole, *shared]))

    def _vectors(self, chunks: Chunks, chunk: Expr) -> Iterator[LaneWriter]:
        """Evaluate at each vector of a chunk, one after the other."""
        self.chunks, self.shared, self.alike = chunks, {}, set()
        lanes = LaneWriter(chunks.lanes, self.signed)
        row = Coordinate("row", self.domain.rows, self.domain.rows)
        row.move(B.i64(0), self.eval.row)
        self.column = ChunkCoordinate(chunks)
        frame = IndexContext(self.domain, row, self.column)
        for step in range(chunks.steps):
            for field in range(chunks.fields):
                self.lanes, self.position = lanes, (chunk, step, field)
                with self.piece(frame, self.column.at(chunk, step, lanes.lane, field)):
                    yield lanes
        self.lanes, self.chunks = None, None

    def _fetch_ahead(self, chunks: Chunks, chunk: Expr) -> None:
        """Fetch the weights of the next row into the second-level cache."""
        assert self.column is not None
        row = self.eval.row + B.i64(1)
        for (tensor, point), every in self.plan.repeats.items():
            if every > chunks.fields:
                continue
            index = flatten(input_indices(self.al, tensor, point), tensor.shape)
            per_line = 64 // item_bytes(tensor.dtype)
            for line in range(-(-chunks.steps * chunks.lanes // per_line)):
                lane = line * per_line
                at = {self.column.step: lane // chunks.lanes, self.column.vector_lane: lane % chunks.lanes}
                places = {var: B.i64(place) for var, place in at.items()}
                column = compat.substitute(
                    self.column.symbolic, {self.column.number: chunk, self.column.field: B.i64(0), **places}
                )
                B.prefetch(B.flat_view(tensor.buffer), self.eval.at(index, row, column))

    def _is_alike(self, factor: Expr) -> bool:
        """Return whether a factor is the same at all vectors of a chunk."""
        assert self.lanes is not None and self.column is not None
        if any(var in compat.free_vars(factor) for var, _ in self.column.axes):
            return False
        read = {compat.load_buffer(e) for e in compat.parts(factor) if compat.is_load(e)}
        return self.in_order not in read and not (read & self.lanes.own) - self.alike


def _add(op: Operator, lanes: LaneWriter, to: Buffer, value: Expr) -> None:
    """Add a vector to partial sums."""
    lanes.store(to, merged(op, compat.load(to, [lanes.lane]), to_held(value)), [lanes.lane])
