# SPDX-License-Identifier: Apache-2.0
"""A small vocabulary for building vectorizable float expressions with shared sub-expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ... import compat
from ...compat import tir
from ...repairs.tir.opaque import through_bits

NESTED_LETS = 16
"""Most Let expressions within each other. Several of TVM's passes visit a body twice, so that 20 take seconds."""

Expr: TypeAlias = Any  # an expression of TVM: type checkers do not see the operators of its Python class
Bind = Callable[[Expr], Expr]

NAN = float("nan")
INF = float("inf")
SIGN_BIT = -(2**31)
EXPONENT_BITS = 0x7F800000


dtype_of = compat.dtype_of


def f32(value: float) -> Expr:
    """Return a float32 constant, rounded here so that every printer and code generator sees the same number."""
    return compat.float_const(float(np.float32(value)), "float32")


def f64(value: float) -> Expr:
    """Return a float64 constant."""
    return compat.float_const(float(value), "float64")


def i32(value: int) -> Expr:
    """Return an int32 constant."""
    return tir.const(value, "int32")


def to_bits(x: Expr) -> Expr:
    """Return the 32 bits of a float32 as int32."""
    return tir.reinterpret("int32", x)


def from_bits(bits: Expr) -> Expr:
    """Return the float32 of 32 bits held as int32."""
    return tir.reinterpret("float32", bits)


def fabs(x: Expr) -> Expr:
    """Return |x| of a float32 or float64. It also clears the sign of -0 and NaN."""
    return tir.abs(x)


def with_sign_of(magnitude: Expr, sign: Expr) -> Expr:
    """Return a non-negative (or NaN) float32 ``magnitude`` with the sign bit of ``sign``."""
    return from_bits(to_bits(magnitude) | (to_bits(sign) & i32(SIGN_BIT)))


def magnitude_bits(x: Expr) -> Expr:
    """Return the bits of |x| of a float32. They are ordered as |x| is: infinity is EXPONENT_BITS and NaN lies above."""
    return to_bits(x) & i32(0x7FFFFFFF)


def quotient(a: Expr, b: Expr) -> Expr:
    """Return ``a / b`` of floats that may be 0.

    TVM refuses to divide by a constant 0. It also folds a constant 0 divided by x to 0, even if x is NaN.
    """
    return through_bits(a) / through_bits(b, True)


def at_most(limit: Expr, x: Expr) -> Expr:
    """Return min(limit, x), or NaN if x is NaN. Comparing NaN is false, and Min then takes its second operand."""
    return tir.Min(limit, x)


def at_least(limit: Expr, x: Expr) -> Expr:
    """Return max(limit, x), or NaN if x is NaN."""
    return tir.Max(limit, x)


def nearest_int(x: Expr, bound: int) -> Expr:
    """Return the integer nearest to a float32 or float64 x with |x| < bound, as int32. For NaN it is -bound.

    Shifting x to positive values makes truncation round, which is one instruction everywhere. LLVM's rounding
    intrinsics are libm calls on x86 without SSE4.1. A float constant that is added and subtracted again is folded
    away. Near a tie the neighbour may be returned (float32 x + 256 keeps 15 bits after the point). NaN must not reach
    the cast, whose result would be undefined: Max drops it.
    """
    dtype = dtype_of(x)
    shifted = tir.Max(x + tir.const(bound + 0.5, dtype), tir.const(0.0, dtype))
    return tir.Cast("int32", shifted) - i32(bound)


def horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Return c[0] + c[1] x + c[2] x^2 ... in the dtype of x, float32 or float64, as fused multiply-adds."""
    const = f64 if dtype_of(x) == "float64" else f32
    result = const(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + const(coefficient)
    return result


def pow2(n: Expr) -> Expr:
    """Return 2**n as float32 for an int32 n in [-126, 127]."""
    return from_bits((n + i32(127)) << i32(23))


class Scope:
    """Holds the shared sub-expressions of one evaluation scope, in order.

    Without ``bind`` they become nested ``Let`` expressions around the result (``close``). With ``bind`` each one goes
    through the callback, which returns the replacement of the value: a load, or a Var.
    """

    def __init__(self, bind: Bind | None = None, parent: Scope | None = None) -> None:
        self._bind = bind
        self._parent = parent
        self._bound: list[tuple[compat.Var, Expr]] = []
        self._known: dict[int, list[tuple[Expr, Expr]]] = {}

    def let(self, value: Expr) -> Expr:
        """Return an expression for ``value`` that is cheap to repeat. Equal values are computed once.

        Without ``bind``, bfloat16 values that are only loaded are repeated instead.

        Raises:
            ValueError: if more values than NESTED_LETS would become nested Lets, or if a value computes in bfloat16.
                TVM's legalization of bfloat16 leaves out the values of Lets, so bits would be read as numbers.
        """
        if isinstance(value, (tir.Var, tir.IntImm, tir.FloatImm)):
            return value
        if dtype_of(value) == "bool":
            # TVM's analyzer fails on a Let of a vector of bools. Comparisons are cheap, and LLVM merges them.
            return value
        key = compat.structural_hash(value)
        bound = self._find(key, value)
        if bound is not None:
            return bound
        if self._bind is not None:
            bound = self._bind(value)
            # The replacement of a value (a load) needs no binding of its own.
            self._known.setdefault(compat.structural_hash(bound), []).append((bound, bound))
        else:
            if self._depth() >= NESTED_LETS:
                raise ValueError(
                    f"more than {NESTED_LETS} shared sub-expressions in one expression: pass bind"
                )
            if any(dtype_of(e) == "bfloat16" for e in compat.parts(value)):
                if compat.is_load(value) or (compat.kind(value) == "Cast" and compat.is_load(value.value)):
                    return value
                raise ValueError("a Let of what computes with bfloat16: pass bind")
            bound = tir.Var(f"t{self._depth()}", dtype_of(value))
            self._bound.append((bound, value))
        self._known.setdefault(key, []).append((value, bound))
        return bound

    def close(self, result: Expr) -> Expr:
        """Return ``result`` inside the Lets made in this scope."""
        for var, value in reversed(self._bound):
            result = tir.Let(var, value, result)
        self._bound.clear()
        return result

    def _find(self, key: int, value: Expr) -> Expr | None:
        scope: Scope | None = self
        while scope is not None:
            for known, expression in scope._known.get(key, ()):
                if compat.structural_equal(known, value):
                    return expression
            scope = scope._parent
        return None

    def _depth(self) -> int:
        return len(self._bound) + (self._parent._depth() if self._parent is not None else 0)
