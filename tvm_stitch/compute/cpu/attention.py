# SPDX-License-Identifier: Apache-2.0
"""Attention on a CPU in one kernel, which never stores scores or weights as a whole.

A task computes some panels of neighbouring queries of one head, with vectors along the queries. Scores, weights and
sums of a block of keys lie transposed, <key, query> and <element, query>. Maxima and sums over the keys therefore
need no step across lanes, and rows of K and V are read element by element, as stored. Only queries and results are
transposed. After each block of keys, sums are scaled to the new maxima (Milakov and Gimelshein, 2018, and
FlashAttention, Dao et al., 2022).

Rows of K and V that are not adjacent are copied, since few of them would stay in the first-level cache. Those of half
types are copied as float32, in which the kernel computes. If there are enough tasks, a task has several panels of
queries, which share the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ... import compat
from ...codegen import builder as B
from ...codegen.cpu.columns import count_of
from ...codegen.cpu.half import stored_as
from ...codegen.cpu.lanes import LaneWriter
from ...codegen.cpu.tasks import times
from ...codegen.cpu.transpose import MatrixRows, side_of, transpose
from ...codegen.emit import sound_for_cpu
from ...codegen.vector_math import Scope, exp_of_negative
from ...codegen.vector_math.scope import quotient
from ...compat import Buffer, Expr, PrimFunc, Var, tir
from ...cost.choices import Choices
from ...graph.dtype import HALF
from ...graph.extent import Extent, as_expr, ceildiv, is_number, product, unflatten
from ...support.failures import Refusal
from ..attention import Attention, Operand, check_sizes
from .data_block import elements
from .emit import compute_func
from .micro_kernel.loops import each_tile
from .micro_kernel.sums import emit_sums
from .tiles import attention_tile

if TYPE_CHECKING:
    from tvm.target import Target

_LOWEST = -3.4028234663852886e38


def check(attention: Attention, choices: Choices) -> None:
    """Raise a Refusal unless the kernel supports this attention."""
    dtypes = {operand.dtype for operand in (*attention.inputs, attention.out)}
    allowed = {"float32", *HALF} if compat.COMPUTES_BFLOAT16 else {"float32"}
    if not dtypes <= allowed:
        raise Refusal(f"attention of {' and '.join(sorted(dtypes))} has no kernel on CPUs")
    check_sizes(attention, abs(attention.scale), choices.cpu_attention_largest_head)


def cpu_attention(attention: Attention, numbers: Sequence[Var], target: Target, choices: Choices) -> PrimFunc:
    """Return the scheduled PrimFunc. Its parameters are the inputs, ``numbers`` and the result.

    Args:
        attention: the computation.
        numbers: the variables of its extents that are not extents of an input.
        target: the CPU's TVM target.
        choices: the device's constants of choice.

    Raises:
        Refusal: as :func:`check` does.
    """
    check(attention, choices)
    buffers = [operand.declared(name) for operand, name in zip(attention.inputs, "qkvm")]
    out = attention.out.declared("out")
    with B.kernel() as body:
        _Emitter(attention, buffers, out, target, choices).emit()
    return sound_for_cpu(compute_func([*buffers, *numbers, out], body[0]))


class _Emitter:
    def __init__(
        self, attention: Attention, buffers: Sequence[Buffer], out: Buffer, target: Target, choices: Choices
    ):
        self.attention, self.choices = attention, choices
        tile = attention_tile(target, choices, attention)
        self.lanes, self.rows, self.width, self.panels = tile.lanes, tile.rows, tile.columns, tile.task_panels
        self.operands = [*zip(attention.inputs, buffers), (attention.out, out)]
        self.keys = choices.attention_block_keys
        if isinstance(attention.keys, int):  # blocks of equal size, as far as possible
            count = max(1, -(-attention.keys // choices.attention_block_keys))
            each = -(-attention.keys // count)
            self.keys = max(1, min(choices.attention_block_keys, -(-each // self.rows) * self.rows))

    def emit(self) -> None:
        """Emit a parallel loop over the tasks."""
        a, width, size = self.attention, self.width, self.attention.size
        panels = ceildiv(a.queries, width)
        divided = [*a.leading, ceildiv(panels, self.panels)]
        self.flat = [B.flat_view(buffer) for _, buffer in self.operands]
        with B.loop("parallel", as_expr(product(divided)), "task") as task:
            *self.position, group = (self._number(each, "place") for each in unflatten(task, divided))
            first = group * B.i64(self.panels)
            count = self._number(count_of(panels, self.panels, first), "count")
            self.bases = [self._base(operand) for operand, _ in self.operands]
            self.queries = B.stack([self.panels * size * width], "float32", "queries")
            self.sums = B.stack([self.panels * size * width], "float32", "sums")
            self.most = B.stack([self.panels * width], "float32", "most")
            self.total = B.stack([self.panels * width], "float32", "total")
            self.scale = B.stack([width], "float32", "scale")
            self.weights = B.stack([self.keys * width], "float32", "weights")
            if self._masked():
                self.mask = B.stack([self.keys * width], "float32", "mask")
            self.copies = [self._copied(number) for number in (1, 2)]
            with self._each_panel(first, count):
                self._read_queries()
                self._fill(self.most, self.lane, 1, float("-inf"))
                self._fill(self.total, self.lane, 1, 0.0)
                self._fill(self.sums, self.row, size, 0.0)
            last = (first + as_expr(count)) * B.i64(width)
            seen = self._number(self._seen(last), "seen")
            with times("serial", ceildiv(seen, self.keys), "block") as at:
                start = at * B.i64(self.keys)
                of_block = self._number(count_of(seen, self.keys, start), "of_block")
                self.rows_of = [self._rows_of(number, start, of_block) for number in (1, 2)]
                with self._each_panel(first, count):
                    with self._where_seen(start):
                        self._block(start, of_block)
            with self._each_panel(first, count):
                self._write()

    @contextmanager
    def _each_panel(self, first: Expr, count: Extent) -> Iterator[None]:
        """Emit a loop over the task's panels of queries, and set the offsets of each panel's values."""
        with times("serial", count, "panel") as panel:
            self.first = self._number((first + panel) * B.i64(self.width), "first")
            self.count = self._number(count_of(self.attention.queries, self.width, self.first), "count")
            self.lane = panel * B.i64(self.width)
            self.row = panel * B.i64(self.attention.size * self.width)
            yield

    def _number(self, value: Any, name: str) -> Any:
        """Bind a number to a variable if sizes are symbolic. For static sizes TVM makes short expressions itself."""
        a = self.attention
        return B.number_of(value, name, (*a.leading, a.queries, a.keys))

    def _seen(self, last: Expr) -> Extent:
        """Return the number of keys that the queries before ``last`` see."""
        a = self.attention
        if a.causal is None:
            return a.keys
        return tir.max(tir.min(as_expr(a.keys), last + as_expr(a.causal)), B.i64(0))

    def _where_seen(self, start: Expr) -> AbstractContextManager[None]:
        """Return a context in which code is emitted only for panels whose queries see keys from ``start`` on."""
        if self.attention.causal is None or self.panels == 1:
            return nullcontext()
        return B.when(tir.LT(start, as_expr(self._seen(self.first + B.i64(self.width)))))

    def _base(self, operand: Operand) -> Expr:
        """Return the element at which the rows of the task's head begin."""
        base = as_expr(operand.offset)
        for position, stride in zip(self.position, operand.strides):
            base = base + position * as_expr(stride)
        return B.bind(base, "base") if compat.free_vars(base) else base

    def _row(self, number: int, row: Expr) -> Expr:
        """Return the first element of a row of an operand."""
        return self.bases[number] + row * as_expr(self.operands[number][0].strides[3])

    def _rows(self, number: int, row: Expr, column: Expr | None = None) -> MatrixRows:
        """Return the rows of an operand that begin at a row and a column."""
        start = self._row(number, row) + (B.i64(0) if column is None else column)
        return MatrixRows(self.flat[number], start, as_expr(self.operands[number][0].strides[3]))

    def _copied(self, number: int) -> Buffer | None:
        """Return a buffer for the copy of a block's rows of K or V, or None if they are read in place.

        Rows that are not adjacent would fall into few sets of the first-level cache.
        """
        size, operand = self.attention.size, self.operands[number][0]
        if is_number(operand.strides[3], size) and operand.dtype == "float32":
            return None
        return B.stack([self.keys * size], "float32", "rows")

    def _rows_of(self, number: int, start: Expr, count: Extent) -> tuple[Buffer, Expr]:
        """Return the buffer of the adjacent rows of K or V in the block from ``start`` on, and the first row's
        position.
        """
        copy, size = self.copies[number - 1], B.i64(self.attention.size)
        if copy is None:
            return self.flat[number], self._row(number, start)
        with times("serial", count, "key") as key:
            begin = B.bind(self._row(number, start + key), "begin")
            elements(
                size,
                self.choices.copied_at_once,
                lambda at: B.store(copy, _wide(B.fetch(self.flat[number], begin + at)), [key * size + at]),
            )
        return copy, B.i64(0)

    def _read_queries(self) -> None:
        """Transpose and scale a panel's queries. Missing queries become 0."""
        a = self.attention
        scale = compat.const(a.scale, "float32")
        if not isinstance(self.count, int) or self.count < self.width:
            self._fill(self.queries, self.row, a.size, 0.0)
        transpose(
            self._rows(0, self.first),
            MatrixRows(self.queries, self.row, B.i64(self.width)),
            self.count,
            a.size,
            side_of(self.lanes, self.count, a.size) if a.q.dtype == "float32" else 1,
            lambda value: _wide(value) * _like(scale, value),
        )

    def _fill(self, buffer: Buffer, start: Expr, lines: int, value: float) -> None:
        with B.loop("serial", lines, "line") as line, B.loop("vectorized", self.width, "v") as v:
            B.store(buffer, compat.float_const(value, "float32"), [start + line * B.i64(self.width) + v])

    # -- a panel's share of a block of keys ------------------------------------------------------------------------
    def _block(self, start: Expr, count: Extent) -> None:
        """Process the keys from ``start`` on: scores, weights, and their contribution to the sums."""
        if self._masked():
            self._read_mask(start, count)
        before = B.stack([self.width], "float32", "before")
        most = self._at(self.most, self.lane)
        self._each_lane(before, most)
        whole = isinstance(count, int) and count % self.rows == 0
        each_tile(
            count,
            self.rows,
            whole,
            lambda _, first, rows: self._scores(start, self._number(first, "key"), rows),
        )
        self._each_lane(self.most, lambda v: tir.max(most(v), _f32(_LOWEST)), self.lane)
        self._exponentials(before, count)
        tile, size = self.rows, self.attention.size
        with B.loop("serial", size // tile, "tile") as at:
            self._add(count, at * B.i64(tile), tile)
        if size % tile:
            self._add(count, B.i64(size // tile * tile), size % tile)

    def _scores(self, start: Expr, first: Expr, rows: int) -> None:
        """Compute the scores of a tile of keys, and update the greatest score so far."""
        width, size = self.width, self.attention.size
        source, begin = self.rows_of[0]
        row = B.bind(self._number(begin + first * B.i64(size), "row"), "row")
        sums = emit_sums(
            rows,
            width,
            self.lanes,
            [size],
            lambda i, k, c: (
                B.fetch(source, row + B.i64(i * size) + k[0])
                * B.fetch(self.queries, self.row + k[0] * B.i64(width) + c)
            ),
            self.choices,
            whole=True,
        )
        highest = self._at(self.most, self.lane)
        for i, line in enumerate(sums):
            key = first + B.i64(i)
            self._each_lane(line, self._masked_score(line, start, key))
            self._each_lane(self.weights, self._lane_of(line), key * B.i64(width))
            highest = _maximum(highest, self._lane_of(line))
        self._each_lane(self.most, highest, self.lane)

    def _masked_score(self, line: Buffer, start: Expr, key: Expr) -> Callable[[Expr], Expr]:
        """Return a key's scores with the mask added, and -inf for queries that do not see the key."""
        a = self.attention
        value = self._lane_of(line)
        if a.mask is not None:
            if self._masked():
                value = _sum(value, lambda v: B.fetch(self.mask, key * B.i64(self.width) + v))
            else:
                at = self.bases[3] + (start + key) * as_expr(a.mask.strides[4])
                value = _sum(value, lambda v: _wide(B.fetch(self.flat[3], at)))
        if a.causal is not None:
            ahead = start + key - self.first - as_expr(a.causal)
            ahead = tir.Cast("int32", tir.max(tir.min(ahead, B.i64(self.width)), B.i64(0)))
            ahead = B.bind(ahead, "ahead")
            seen = value
            value = lambda v: tir.Select(  # noqa: E731
                tir.GE(tir.Cast("int32", v), ahead), seen(v), _f32(float("-inf"))
            )
        return value

    def _masked(self) -> bool:
        """Return whether the mask differs between queries."""
        mask = self.attention.mask
        return mask is not None and not is_number(mask.strides[3], 0)

    def _read_mask(self, start: Expr, count: Extent) -> None:
        """Transpose the mask of a block."""
        mask = self.attention.mask
        assert mask is not None
        to = MatrixRows(self.mask, B.i64(0), B.i64(self.width))
        if is_number(mask.strides[4], 1) and mask.dtype == "float32":
            rows = self._rows(3, self.first, start)
            transpose(rows, to, self.count, count, side_of(self.lanes, self.count, count))
            return
        with times("serial", self.count, "q") as q, times("serial", count, "k") as k:
            at = self._row(3, self.first + q) + (start + k) * as_expr(mask.strides[4])
            B.store(self.mask, _wide(B.fetch(self.flat[3], at)), [to.at(k, q)])

    def _exponentials(self, before: Buffer, count: Extent) -> None:
        """Compute weights from scores, their sums, and the factor that rescales the sums so far."""
        width = self.width
        of_block = B.stack([width], "float32", "of_block")
        self._fill(of_block, B.i64(0), 1, 0.0)
        with times("serial", count, "k") as k:
            self._exponential(self.weights, k * B.i64(width), self.weights, k * B.i64(width))
            weight = lambda v: B.fetch(self.weights, k * B.i64(width) + v)  # noqa: E731
            self._each_lane(of_block, _sum(self._lane_of(of_block), weight))
        self._exponential(before, B.i64(0), self.scale, B.i64(0))
        scaled = _product(self._at(self.total, self.lane), self._lane_of(self.scale))
        self._each_lane(self.total, _sum(scaled, self._lane_of(of_block)), self.lane)

    def _exponential(self, source: Buffer, start: Expr, to: Buffer, at: Expr) -> None:
        """Store e to the power of the values in ``source`` minus the greatest score."""
        writer = LaneWriter(self.width)
        score = writer.bind(B.fetch(source, start + writer.lane), "score")
        scope = Scope(lambda part: writer.bind(part, "part"))
        value = exp_of_negative(scope, scope.let(score - B.fetch(self.most, self.lane + writer.lane)))
        writer.store(to, value, [at + writer.lane])

    def _add(self, count: Extent, first: Expr, rows: int) -> None:
        """Add the weighted sums of a block for some elements of V's rows."""
        width, size = self.width, self.attention.size
        source, begin = self.rows_of[1]
        base = B.bind(begin + first, "base")
        sums = emit_sums(
            rows,
            width,
            self.lanes,
            [count],
            lambda i, k, c: (
                B.fetch(source, base + k[0] * B.i64(size) + B.i64(i))
                * B.fetch(self.weights, k[0] * B.i64(width) + c)
            ),
            self.choices,
            whole=True,
        )
        for i, line in enumerate(sums):
            at = self.row + (first + B.i64(i)) * B.i64(width)
            so_far = _product(self._at(self.sums, at), self._lane_of(self.scale))
            self._each_lane(self.sums, _sum(so_far, self._lane_of(line)), at)

    # -- the result ------------------------------------------------------------------------------------------------
    def _write(self) -> None:
        """Divide the sums by the weights' sums, and transpose them."""
        a, width = self.attention, self.width
        total = self._at(self.total, self.lane)
        self._each_lane(self.scale, lambda v: quotient(_f32(1.0), total(v)))
        with B.loop("serial", a.size, "d") as d:
            at = self.row + d * B.i64(width)
            divided = _product(self._at(self.sums, at), self._lane_of(self.scale))
            self._each_lane(self.sums, lambda v: self._or_nothing(total(v), divided(v)), at)
        transpose(
            MatrixRows(self.sums, self.row, B.i64(width)),
            self._rows(len(self.operands) - 1, self.first),
            a.size,
            self.count,
            side_of(self.lanes, self.count, a.size) if a.out.dtype == "float32" else 1,
            lambda value: value if a.out.dtype == "float32" else stored_as(value, a.out.dtype),
        )

    def _or_nothing(self, total: Expr, value: Expr) -> Expr:
        """Return a result, or 0 for a sum over no keys, and on request for a query that sees no key."""
        a = self.attention
        if a.safe or is_number(a.keys, 0):
            return tir.Select(tir.EQ(total, _f32(0.0)), _f32(0.0), value)
        if isinstance(a.keys, int):
            return value
        return tir.Select(tir.EQ(as_expr(a.keys), B.i64(0)), _f32(0.0), value)

    # -- lanes -----------------------------------------------------------------------------------------------------
    def _at(self, buffer: Buffer, start: Expr) -> Callable[[Expr], Expr]:
        return lambda v: B.fetch(buffer, start + v)

    def _lane_of(self, buffer: Buffer) -> Callable[[Expr], Expr]:
        return lambda v: B.fetch(buffer, v)

    def _each_lane(self, to: Buffer, value: Callable[[Expr], Expr], at: Expr | None = None) -> None:
        """Store a value for each of the task's queries."""
        with B.loop("vectorized", self.width, "v") as v:
            B.store(to, value(v), [v if at is None else at + v])


Lane = Callable[[Expr], Expr]
"""A value as a function of the query's number."""


def _like(scalar: Expr, value: Expr) -> Expr:
    """Return a scalar, or a vector of it as long as ``value``."""
    lanes = compat.lanes_of(value)
    return scalar if lanes == 1 else tir.Broadcast(scalar, lanes)


def _wide(value: Expr) -> Expr:
    """Return an element in float32."""
    return value if compat.dtype_of(value).startswith("float32") else tir.Cast("float32", value)


def _f32(value: float) -> Expr:
    return compat.float_const(value, "float32")


def _sum(a: Lane, b: Lane) -> Lane:
    return lambda v: a(v) + b(v)


def _product(a: Lane, b: Lane) -> Lane:
    return lambda v: a(v) * b(v)


def _maximum(a: Lane, b: Lane) -> Lane:
    return lambda v: tir.max(a(v), b(v))
