# SPDX-License-Identifier: Apache-2.0
"""Vector statements: a value is computed for all lanes of a piece and stored by a vectorized loop of its own.

TVM makes a whole vectorized loop scalar if a single operator in it has no vector form. So each value gets its own
loop. TVM also substitutes bound scalars back into their uses, so values are named by lane buffers. LLVM turns both
into registers again.

Lanes that branch apart and wrap around are unrolled. TVM makes a vectorized loop scalar if it contains a condition.
LLVM 22's loop vectorizer then mistakes ``x[i % 8]`` below a condition for ``x[i]`` (llvm/llvm-project, issue 156849
and pull request 225086). That reads wrong elements, also beyond the tensor. After unrolling most conditions are
known, and the code is as fast or faster.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ... import compat
from ...compat import Buffer, Expr, Var, tir
from ...repairs.tir.truncated import truncated
from .. import builder as B
from .index_context import IndexContext


def held(dtype: str) -> str:
    """Return the dtype in which the function's own buffers hold a value. TVM cannot lower buffers of bool."""
    return "int8" if dtype == "bool" else dtype


def to_held(value: Expr) -> Expr:
    """Convert a value to its form in the function's own buffers."""
    return tir.Cast("int8", value) if compat.dtype_of(value) == "bool" else value


def from_held(value: Expr, dtype: str) -> Expr:
    """Convert a value from its form in such a buffer back to ``dtype``."""
    return tir.NE(value, compat.const(0, "int8")) if dtype == "bool" else value


class LaneWriter:
    """Writes statements over ``width`` lanes. Expressions refer to the lane by the variable ``lane``.

    ``signed`` are the symbols that may be negative.
    """

    def __init__(self, width: int, signed: Collection[Var] = ()):
        self.width, self.signed = width, signed
        self.frame: IndexContext | None = None
        self.lane: Expr = tir.Var("lane", "int64") if width > 1 else B.i64(0)
        self.own: set[Buffer] = set()

    def store(self, buffer: Buffer, value: Expr, indices: Sequence[Expr]) -> None:
        """Emit ``buffer[indices] = value`` for every lane."""
        unrolled = self._branches(value) and self.wraps(value)
        with B.loop("unroll" if unrolled else "vectorized", self.width, "v") as v:
            _store(buffer, self.at(value, v), [self.at(i, v) for i in indices])

    def _branches(self, value: Expr) -> bool:
        """Return True if lanes branch apart in a value. TVM makes a scalar loop of such lanes."""
        return any(compat.is_choice(e) and self.differ(e.args[0]) for e in compat.parts(value))

    def wraps(self, value: Expr) -> bool:
        """Return True if an index in a value wraps around at a power of two, within the lanes."""

        def is_power(divisor: int | None) -> bool:
            return divisor is not None and divisor > 1 and divisor & (divisor - 1) == 0

        remainders = (e for e in compat.parts(value) if compat.kind(e) in ("FloorMod", "Mod"))
        return any(is_power(compat.int_value(e.b)) and self.differ(e.a) for e in remainders)

    def at(self, value: Expr, lane: Expr) -> Expr:
        """Return the value in one lane, at the frame's current position."""
        value = self.actual(value)
        return compat.substitute(value, {self.lane: lane}) if self.width > 1 else value

    def actual(self, value: Expr) -> Expr:
        """Return the value at the frame's current position, in terms of the lane."""
        value = value if self.frame is None else self.frame.actual(value)
        return truncated(value, self.signed) if compat.HAS_SYMBOLIC_EXTENTS else value

    def differ(self, value: Expr) -> bool:
        """Return True if the value may differ between lanes."""
        return self.width > 1 and self.lane in compat.free_vars(self.actual(value))

    def bind(self, value: Expr, name: str) -> Expr:
        """Return the value itself if it is trivial, else an element of a lane buffer that holds it."""
        if compat.kind(value) in ("Var", "FloatImm", "IntImm"):
            return value
        if compat.is_load(value) and compat.load_buffer(value) in self.own:
            return value
        return self.broadcast(value, name)

    def broadcast(self, value: Expr, name: str) -> Expr:
        """Store a value in a lane buffer and return its element, even if all lanes share the value."""
        dtype = compat.dtype_of(value)
        buffer = self.buffer(held(dtype), name)
        self.store(buffer, to_held(value), [self.lane])
        return from_held(compat.load(buffer, [self.lane]), dtype)

    def buffer(self, dtype: str, name: str) -> Buffer:
        """Allocate a buffer of one element a lane."""
        buffer = B.stack([self.width], dtype, name)
        self.own.add(buffer)
        return buffer

    def fill(self, buffer: Buffer, value: Expr, start: Expr | None = None) -> None:
        """Set ``width`` elements from ``start`` on."""
        self.store(buffer, value, [self.lane if start is None else start + self.lane])


def _store(buffer: Buffer, value: Expr, indices: Sequence[Expr]) -> None:
    """Store a value. A conditional value becomes a statement, which is vector code if all lanes decide alike."""
    if compat.is_choice(value):
        condition, yes, no = value.args
        B.either(condition, lambda: _store(buffer, yes, indices), lambda: _store(buffer, no, indices))
        return
    B.store(buffer, value, indices)
