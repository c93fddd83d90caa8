# SPDX-License-Identifier: Apache-2.0
"""Evaluate operators at points: expressions are substituted through index maps, and each value is bound once.

The value cache and the index cache of AStitch's code generation (and of PAI's) are both here. A value is cached by
operator and point. Index arithmetic uses variables that the caller hoists (row and column).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol

from .. import compat
from ..compat import Analyzer, Buffer, Expr, Var, has_load, tir
from ..graph.access import branches, loads
from ..graph.classify import HEAVY_CALLS, is_heavy
from ..graph.dtype import HALF, compute_dtype
from ..graph.ir import Access, Operator, Tensor
from ..graph.names import short_name
from ..plan.iteration.alignment import Alignment, Key
from ..plan.iteration.domain import At, Point
from ..repairs.tir.arithmetic import DEVICE, Arithmetic, is_small, wraps
from ..repairs.tir.negation import hidden_negation
from ..repairs.tir.opaque import as_c_type
from ..repairs.tir.sound_indices import is_padded, sound_index
from ..repairs.tir.truncated import signed_symbols
from . import builder as B
from .buffers import IN_PLACE, Buffers
from .small_integers import float_of_masked, is_exact, with_offset_joined

FLOAT_CALLS = HEAVY_CALLS | frozenset(
    "fabs floor ceil round trunc nearbyint isnan isinf isfinite copysign fma abs likely".split()
)
"""Calls that mean the same on float32 as on the half types, except for rounding."""


def convert(value: Expr, dtype: str) -> Expr:
    """Cast unless the value already has the dtype.

    A value that was rounded to a half type is not rounded again. A second rounding would cost two conversions, which
    compilers keep.
    """
    if compat.dtype_of(value) == dtype:
        return value
    if compat.dtype_of(value) == "float32" and dtype in HALF and compat.kind(value) == "Cast":
        rounded = value.value
        if compat.dtype_of(rounded) == dtype:
            return rounded
    return tir.Cast(dtype, value)


_CONDITIONS = ("LT", "LE", "GT", "GE", "And", "Or")


class Reader(Protocol):
    """The interface by which a backend supplies the values that lie outside an expression."""

    def kept(self, key: Key) -> Expr | None:
        """Return the value of an operator at the current column if a tile keeps it, else None."""

    def input(self, access: Access, point: Point) -> Expr | None:
        """Return the current element of an input if a tile holds it already, else None."""

    def guarded_input(self, access: Access, point: Point) -> Expr | None:
        """Return the same of an input that is read below conditions, if these hold."""

    def condition(self, key: Key, condition: Expr) -> Expr | None:
        """Return a condition of an operator's expression if it was decided for the current column, else None."""

    def sum_of_window(self, key: Key, e: Expr) -> Expr | None:
        """Return a part of an operator's expression if it was added up for the current column already, else None."""

    def bind(self, value: Expr, name: str) -> Expr:
        """Bind a value to a name, so that it is computed once. Return the bound value."""


class Evaluator:
    """Builds the expression of any operator at any point of the current row and column."""

    arithmetic: Arithmetic = DEVICE

    def __init__(
        self,
        alignment: Alignment,
        row: Expr,
        reader: Reader,
        math: Callable[[Expr], Expr] | None = None,
        buffers: Buffers = IN_PLACE,
    ):
        self.al, self.buffers = alignment, buffers
        self.reader = reader
        self.math = math
        self.guard: Expr | None = None
        self.row_cache: dict[Key, Expr] = {}
        self.column_cache: dict[Key, Expr] = {}
        self.row = row
        self.column: Expr | None = None
        self.inputs = dict.fromkeys(alignment.graph.inputs)
        self.moved = _moved(alignment, buffers)
        self.analyzer = Analyzer()
        self._signed: frozenset[Var] | None = None

    def at_column(self, column: Expr | None) -> None:
        """Move to another column (None: between sweeps) and forget the values of the last one."""
        self.column = column
        self.column_cache = {}

    def set_row_value(self, key: Key, value: Expr) -> None:
        """Record a row value, such as a reduction's result."""
        self.row_cache[key] = value

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget row values, because their operands have changed."""
        for key in keys:
            self.row_cache.pop(key, None)

    def bind_row(self, key: Key) -> None:
        """Evaluate a row value and bind it."""
        if key not in self.row_cache:
            self.row_cache[key] = self.reader.bind(self._expression(key, False), short_name(key[0]))

    def hold_row(self, key: Key) -> None:
        """Evaluate a row value here and now if it reads an input. Other values cost nothing later."""
        if key not in self.row_cache and any(a.tensor in self.inputs for a in key[0].accesses):
            self.row_cache[key] = B.cell(self._expression(key, False), short_name(key[0]))

    def value(self, key: Key) -> Expr:
        """Return the value of an operator at a point, bound on first use."""
        if not key[1].per_column:  # bound before the sweep, or evaluated in place
            return self.row_cache[key] if key in self.row_cache else self._expression(key, False)
        kept = self.reader.kept(key)
        if kept is not None:
            return kept
        if key not in self.column_cache:
            self.column_cache[key] = self.reader.bind(self._expression(key, False), short_name(key[0]))
        return self.column_cache[key]

    def operand(self, op: Operator) -> Expr:
        """Return the operand of a reduction at the current column, in the accumulation dtype."""
        point = next(p for o, p in self.al.roots if o is op)
        return convert(self._expression((op, point), False), compute_dtype(op.output.dtype))

    def indices(self, key: Key) -> list[Expr]:
        """Return the indices of a value in its operator's output, in the current row and column."""
        return [self.localize(i) for i in self.al.domain.output_indices(*key)]

    def localize(self, index: Expr) -> Expr:
        """Write an index in the current row and column instead of the domain's variables."""
        return self.at(index, self.row, self.column)

    def at(self, index: Expr, row: Expr, column: Expr | None) -> Expr:
        """Return an index at any row and column."""
        values = {self.al.domain.row: row}
        if column is not None:
            values[self.al.domain.column] = column
        here = self.sound(compat.substitute(index, values))
        return _from(self.moved, here) if self.moved and has_load(here) else here

    def sound(self, index: Expr) -> Expr:
        """Rewrite an index into a form that TVM normalizes soundly."""
        if not is_padded(index):
            return index
        if self._signed is None:
            self._signed = signed_symbols(self.al.graph)
        return sound_index(index, self._signed)

    def window_term(self, key: Key, e: Expr, begin: int) -> Expr:
        """Return a term of a sum in an operator's expression. ``begin``: the operator's accesses in front of it."""
        return self._rebuilt(key, e, islice(self.al.children(key), begin, None), False)

    def joined(self, node: Expr, before: Expr, term: Expr) -> Expr:
        """Return what a node of a sum makes of the value before it and of a term."""
        return self.operation(node, lambda x: before if x.same_as(node.a) else term)

    def _expression(self, key: Key, guarded: bool) -> Expr:
        result = self._rebuilt(key, key[0].value, iter(self.al.children(key)), guarded)
        # Below a guard nothing may be bound outside of it: the guarding expression is lowered as a whole.
        return self.math(result) if self.math is not None and not guarded else result

    def _rebuilt(
        self, key: Key, value: Expr, cursor: Iterator[tuple[Access, Point | None]], guarded: bool
    ) -> Expr:
        """Return a part of an operator's expression at a point. ``cursor``: its accesses, and others behind them."""
        axis = {v: self._index(e) for v, e in self.al.domain.axis_values(*key).items()}

        def visit(e: Expr, guarded: bool) -> Expr:
            name = compat.kind(e)
            if compat.is_load(e):
                access, child = next(cursor)
                if child is None:  # a gather: its indices are values themselves
                    buffer = self.buffers.of(access.tensor)
                    return self._read(buffer, [convert(visit(i, guarded), "int64") for i in e.indices])
                for _ in range(sum(1 for i in compat.elements(e.indices) for _ in loads(i))):
                    next(cursor)  # the loads in a gather's indices belong to the point
                return self._access(access, child, guarded)
            if name in ("Var", "SizeVar"):
                return axis.get(e, e)
            chosen = branches(e)
            if chosen is not None:
                decided = self.reader.condition(key, chosen[0])
                condition = visit(chosen[0], guarded) if decided is None else decided
                values = _level(visit(chosen[1], True), visit(chosen[2], True))
                return tir.if_then_else(condition, *values) if decided is None else _either(decided, *values)
            if name in _CONDITIONS and (decided := self.reader.condition(key, e)) is not None:
                return decided
            if (added := self.reader.sum_of_window(key, e)) is not None:
                for _ in loads(e):
                    next(cursor)
                return added
            return self.operation(e, lambda x: visit(x, guarded))

        return visit(value, guarded)

    def operation(self, e: Expr, visit: Callable[[Expr], Expr]) -> Expr:
        """Rebuild an operation over visited operands, as a GPU kernel computes it."""
        hidden = hidden_negation(e, visit)
        return widen(e, visit, self.arithmetic) if hidden is None else hidden

    def _access(self, access: Access, point: Point, guarded: bool) -> Expr:
        producer = access.tensor.producer
        if producer is None or access.tensor in self.inputs:
            below = access.guarded or guarded
            loaded = (self.reader.guarded_input if below else self.reader.input)(access, point)
            if loaded is not None:
                return loaded
            indices = [self.localize(i) for i in input_indices(self.al, access.tensor, point)]
            return self._read(self.buffers.of(access.tensor), indices)
        key = (producer, point)
        if (guarded or access.guarded) and point.at is At.INDEX:
            return self._expression(key, True)
        return self.value(key)

    def _index(self, index: Expr) -> Expr:
        """Return an index in the current row and column. An index that loads an input is guarded by the row."""
        here = self.localize(index)
        if self.guard is None or not has_load(index):
            return here
        return tir.if_then_else(self.guard, here, compat.const(0, "int64"))

    def _read(self, buffer: Buffer, indices: list[Expr]) -> Expr:
        if not indices and len(buffer.shape):  # a scalar in a one-element buffer
            indices = [compat.const(0, "int64")]
        value = compat.load(buffer, indices)
        if self.guard is not None:  # the row may not exist: load nothing, use a harmless value
            value = tir.if_then_else(self.guard, value, compat.const(1, compat.buffer_dtype(buffer)))
        return convert(value, compute_dtype(compat.buffer_dtype(buffer)))


def input_indices(alignment: Alignment, tensor: Tensor, point: Point) -> list[Expr]:
    """Return the indices into an input tensor at a point, in the domain's row and column variables."""
    return alignment.domain.input_indices(tensor.shape, point)


def _moved(alignment: Alignment, buffers: Buffers) -> dict[Buffer, Buffer]:
    """Return the buffers of inputs that are not where operators read them: values of an earlier stage, in scratch."""
    inputs = dict.fromkeys(alignment.graph.inputs)
    operands = [(b, t) for op in alignment.graph.operators for b, t in op.operand.items() if t in inputs]
    operands += [(b, t) for t, b in alignment.stand_ins.items()]
    return {b: buffers.of(t) for b, t in operands if not b.same_as(buffers.of(t))}


def _from(moved: dict[Buffer, Buffer], index: Expr) -> Expr:
    """Rewrite the loads of an index to the buffers that inputs were moved to."""

    def visit(e: Expr) -> Expr:
        if not compat.is_load(e):
            return compat.rebuild(e, visit)
        buffer = compat.load_buffer(e)
        indices = [visit(i) for i in e.indices]
        return convert(compat.load(moved.get(buffer, buffer), indices), compat.dtype_of(e))

    return visit(index)


def _either(condition: Expr, a: Expr, b: Expr) -> Expr:
    """Return one of two values. Both are computed if that is cheap and reads registers alone."""
    if compat.structural_equal(a, b) or compat.int_value(condition) == 1:
        return a
    if compat.int_value(condition) == 0:
        return b
    read = [compat.load_buffer(e) for value in (a, b) for e in compat.loads_in(value)]
    cheap = all(buffer.scope() == "local" for buffer in read) and not is_heavy(a) and not is_heavy(b)
    return tir.Select(condition, a, b) if cheap else tir.if_then_else(condition, a, b)


def _level(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Bring two branch values to one dtype (one may have been widened)."""
    da, db = compat.dtype_of(a), compat.dtype_of(b)
    if da == db:
        return a, b
    return (a, tir.Cast(da, b)) if da == "float32" else (tir.Cast(db, a), b)


def _floored(name: str, a: Expr, b: Expr) -> Expr:
    """Return a floor division or modulo of data, built from truncating operations.

    A TVM with Relay lowers floor operations wrongly if it believes the dividend to be bounded. In ``(x + 2) % 3`` it
    adds a multiple of 3 above 2^31 - 2, which overflows.
    """
    if not compat.dtype_of(a).startswith("int"):
        return tir.FloorDiv(a, b) if name == "FloorDiv" else tir.FloorMod(a, b)
    rest = tir.truncmod(a, b)
    zero = compat.const(0, compat.dtype_of(a))
    other_sign = tir.And(tir.NE(rest, zero), tir.LT(rest ^ b, zero))
    if name == "FloorMod":
        return tir.Select(other_sign, rest + b, rest)
    quotient = tir.truncdiv(a, b)
    return tir.Select(other_sign, quotient - compat.const(1, compat.dtype_of(a)), quotient)


def widen(e: Expr, visit: Callable[[Expr], Expr], arithmetic: Arithmetic) -> Expr:
    """Rebuild a node over visited operands. float16 and bfloat16 are computed in float32."""
    name, dtype = compat.kind(e), compat.dtype_of(e)
    if name == "FloatImm":
        if dtype in HALF:
            return compat.float_const(float(e.value), "float32")
        return compat.float_const(float(e.value), dtype) if dtype in ("float32", "float64") else e
    if name in ("IntImm", "StringImm"):
        return e
    if name == "Cast":
        value = visit(e.value)
        if has_load(e):
            exact = float_of_masked(e.value, value, dtype, arithmetic is DEVICE)
            if exact is not None:
                return exact
            if arithmetic is not DEVICE and dtype in HALF and is_exact(e.value, dtype):
                return convert(value, "float32")
        if dtype in HALF:  # keep an explicit rounding, then compute in float32
            if compat.dtype_of(e.value) in HALF and compat.dtype_of(e.value) == dtype:
                return value
            if arithmetic is DEVICE and not has_load(e) and compat.free_vars(value):
                # Of sizes alone: TVM would compute it once for all kernels, on the host, which has no half types.
                value = as_c_type(value, compat.dtype_of(value))
            return tir.Cast("float32", tir.Cast(dtype, value))
        return arithmetic.narrowed(value, dtype) if wraps(e) else convert(value, dtype)
    if name in compat.BINARY:
        a, b = _level(visit(e.a), visit(e.b))
        if name in ("FloorDiv", "FloorMod") and not compat.FLOORS_DATA and has_load(e):
            return _floored(name, a, b)
        joined = with_offset_joined(a, b) if name == "Sub" else None
        if joined is not None:
            return joined
        return arithmetic.binary(type(e), a, b) if _is_data(e) else type(e)(a, b)
    if name == "Not" and has_load(e):
        return arithmetic.negated(visit(e.a))
    if name == "BitwiseNot" and _is_data(e):
        return arithmetic.complement(type(e), visit(e.a))
    if name == "Select":
        return tir.Select(visit(e.condition), *_level(visit(e.true_value), visit(e.false_value)))
    if name == "Call":
        args = [visit(a) for a in e.args]
        if compat.call_name(e) in ("shift_left", "bitwise_not") and _is_data(e):

            def made(*operands: Expr) -> Expr:
                return compat.recast_call(e, compat.dtype_of(operands[0]), operands)

            shifts = compat.call_name(e) == "shift_left"
            return arithmetic.shifted_left(made, *args) if shifts else arithmetic.complement(made, *args)
        if compat.call_name(e) not in FLOAT_CALLS:  # its meaning depends on its operands' own dtypes
            args = [convert(new, compat.dtype_of(old)) for new, old in zip(args, e.args)]
            call = compat.remake_call(e, args)
            return tir.Cast("float32", call) if dtype in HALF else call

        def make(*operands: Expr) -> Expr:
            if dtype in HALF:
                return compat.recast_call(e, "float32", operands)
            return compat.remake_call(e, operands)

        return arithmetic.called(compat.call_name(e), make, *args)
    return compat.rebuild(e, visit)


def _is_data(e: Expr) -> bool:
    """Return True if an operation computes the model's data rather than an index.

    Such an operation reads a tensor, or has a dtype that no index has.
    """
    return is_small(compat.dtype_of(e)) or has_load(e)
