# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on data, exactly as IEEE 754 and two's complement define it.

- Floats keep NaN and infinities. Operands are hidden from the simplifier (:mod:`.opaque`), maxima and minima
  propagate NaN, and ``a != b`` holds when one of them is NaN.
- Integers of every width wrap around. A kernel for a GPU computes in unsigned integers of at least 32 bits. A kernel
  for a CPU computes in integers of twice the width, which LLVM narrows to one plain instruction. The result is
  converted back where nothing can widen it again.

Indices are no data: their arithmetic stays as it is, for TVM to simplify.

Fault: TVM's CUDA C computes small integers as C's int, and does not wrap the result. Signed overflow is undefined in
    C and LLVM, and TVM calls LLVM so that unsigned overflow is undefined as well.
Seen in: TVM 0.27.0
Input: ``R.astype(R.add(x, x), "float32")`` with x = 200 in uint8, target cuda
Upstream: https://github.com/apache/tvm/issues/12383
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ... import compat
from ...compat import Buffer, Expr, has_load, tir
from .device_math import FUNCTIONS, device_call
from .nan_extrema import maximum_or_minimum
from .opaque import as_c_type, or_zero, through_bits

FLOATS = ("float32", "float64")
_COMPARED = frozenset("EQ NE LT LE GT GE".split())
_HIDDEN = _COMPARED | frozenset("Add Sub Mul Div Mod FloorDiv FloorMod Max Min".split())
_WRAPPED = frozenset("Add Sub Mul".split())
_DIVIDED = frozenset("Div Mod FloorDiv FloorMod".split())


def bits_of(dtype: str) -> int:
    """Return the width of an integer dtype, or 0 for another dtype."""
    digits = dtype.removeprefix("u").removeprefix("int")
    return int(digits) if digits.isdigit() else 0


def is_small(dtype: str) -> bool:
    """Return True for an integer dtype that C computes in ``int``."""
    return 0 < bits_of(dtype) < 32


def holds(dtype: str, other: str) -> bool:
    """Return True if an integer dtype holds all numbers of another one, or if one of them is not an integer dtype."""
    bits, others = bits_of(dtype), bits_of(other)
    if not bits or not others or dtype == other:
        return True
    return bits > others and (dtype.startswith("int") or other.startswith("u"))


def wraps(cast: Expr) -> bool:
    """Return True for a cast of data to an integer dtype that may not hold it."""
    return not holds(compat.dtype_of(cast), compat.dtype_of(cast.value)) and has_load(cast)


class Arithmetic:
    """Builds the operations on a model's data for one kind of device."""

    def binary(self, node: type[Any], a: Expr, b: Expr) -> Expr:
        """Return the operation of a class of two-operand nodes (``tir.Add``) on data of one dtype."""
        name, dtype = node.__name__, compat.dtype_of(a)
        if dtype in FLOATS and name in _HIDDEN:
            a, b = self._apart(name, a, b)
            if name in ("Max", "Min"):
                return self.extremum(node, a, b)
            return self.differ(a, b) if name == "NE" else node(a, b)
        if dtype == "bool" and name in ("And", "Or"):
            return self.both_or_any(node, a, b)
        if bits_of(dtype):
            if name in _WRAPPED:
                return self.wrapped(node, a, b)
            if name in ("Div", "FloorDiv") and compat.int_value(b) == -1:
                return self.wrapped(tir.Sub, compat.const(0, dtype), a)
            if name in _DIVIDED:
                return self.divided(node, a, b)
            if name == "LShift":
                return self.shifted_left(node, a, b)
            if name == "RShift" and bits_of(dtype) == 64:
                return node(self.unbounded(a), b)
        return node(a, b)

    def _apart(self, name: str, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """Return operands of a float operation that the simplifier can neither compare nor cancel."""
        one, other = _leaf(a), _leaf(b)
        if isinstance(one, float) or isinstance(other, float):
            # The simplifier folds products with 0 and quotients of 0 to 0, and a sum with 0 to its other term.
            absorbs = name in ("Add", "Mul", "Div")
            hide_a = one is None or (absorbs and one == 0)
            hide_b = other is None or (absorbs and other == 0)
        else:
            same = one is not None and other is not None and one.same_as(other)
            hide_a, hide_b = one is None or same, other is None
        return self.identity(a) if hide_a else a, self.identity(b, True) if hide_b else b

    def identity(self, x: Expr, second: bool = False) -> Expr:
        """Return a float that the simplifier knows nothing about."""
        raise NotImplementedError

    def extremum(self, node: type[Any], a: Expr, b: Expr) -> Expr:
        """Return the maximum (``tir.Max``) or minimum of floats, which is NaN if one of them is."""
        raise NotImplementedError

    def differ(self, a: Expr, b: Expr) -> Expr:
        """Return ``a != b`` of floats, which is true if one of them is NaN."""
        raise NotImplementedError

    def negated(self, x: Expr) -> Expr:
        """Return ``not x``."""
        raise NotImplementedError

    def both_or_any(self, node: type[Any], a: Expr, b: Expr) -> Expr:
        """Return ``a and b`` (``tir.And``), or ``a or b``."""
        raise NotImplementedError

    def wrapped(self, node: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
        """Return a sum, difference or product of integers, modulo two to the number of their bits."""
        raise NotImplementedError

    def divided(self, node: type[Any], a: Expr, b: Expr) -> Expr:
        """Return a quotient or remainder of integers."""
        return node(a, b)

    def shifted_left(self, make: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
        """Return ``a << b`` of integers. ``make`` builds the shift for operands of any dtype."""
        return make(a, b)

    def unbounded(self, x: Expr) -> Expr:
        """Return an integer of which the simplifier knows no bounds.

        TVM computes integers of 64 bits in 32 bits if the values fit, and then refuses to shift by more. The bounds
        that it derives for a shift to the left may make a check of its own fail.
        """
        raise NotImplementedError

    def narrowed(self, x: Expr, dtype: str) -> Expr:
        """Return an integer converted to a dtype that may not hold it, modulo two to the number of its bits.

        The simplifier takes a cast number for the same number.
        """
        raise NotImplementedError

    def called(self, _name: str, make: Callable[..., Expr], *operands: Expr) -> Expr:
        """Return a function of floats. ``make`` builds the call if no compiler approximates the function."""
        return make(*operands)

    def complement(self, make: Callable[[Expr], Expr], x: Expr) -> Expr:
        """Return ``~x`` of an integer or bool. ``make`` builds the complement of an integer of any dtype."""
        return self.negated(x) if compat.dtype_of(x) == "bool" else make(x)


class DeviceArithmetic(Arithmetic):
    """Arithmetic for CUDA C."""

    def identity(self, x: Expr, second: bool = False) -> Expr:
        return as_c_type(x, compat.dtype_of(x), second)

    def extremum(self, node: type[Any], a: Expr, b: Expr) -> Expr:
        return maximum_or_minimum(node.__name__ == "Max", a, b)

    def differ(self, a: Expr, b: Expr) -> Expr:
        return tir.NE(a, b)

    def negated(self, x: Expr) -> Expr:
        return tir.Not(x if compat.is_load(x) else as_c_type(x, "bool"))

    def both_or_any(self, node: type[Any], a: Expr, b: Expr) -> Expr:
        return node(_bool(a, False), _bool(b, True))

    def wrapped(self, node: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
        dtype = compat.dtype_of(a)
        wide = f"uint{max(32, bits_of(dtype))}"
        return as_c_type(node(_unsigned(a, wide), _unsigned(b, wide)), dtype, True)

    def divided(self, node: type[Any], a: Expr, b: Expr) -> Expr:
        dtype = compat.dtype_of(a)
        if bits_of(dtype) >= 32:
            return node(a, b)
        return as_c_type(node(_cast(a, "int32"), _cast(b, "int32")), dtype, True)

    def narrowed(self, x: Expr, dtype: str) -> Expr:
        return as_c_type(x, dtype, True)

    def shifted_left(self, make: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
        return self.wrapped(make, a, b)

    def unbounded(self, x: Expr) -> Expr:
        return as_c_type(x, compat.dtype_of(x))

    def called(self, name: str, make: Callable[..., Expr], *operands: Expr) -> Expr:
        approximated = name in FUNCTIONS and compat.dtype_of(operands[0]) == "float32"
        return device_call(name, *operands) if approximated else make(*operands)

    def complement(self, make: Callable[[Expr], Expr], x: Expr) -> Expr:
        dtype = compat.dtype_of(x)
        result = super().complement(make, x)
        return as_c_type(result, dtype, True) if is_small(dtype) else result


class HostArithmetic(Arithmetic):
    """Arithmetic for llvm."""

    def identity(self, x: Expr, second: bool = False) -> Expr:
        return through_bits(x, second)

    def extremum(self, node: type[Any], a: Expr, b: Expr) -> Expr:
        """Return a maximum or minimum with a number as first operand, if one operand is a number.

        TVM's maximum is its second operand if one operand is NaN, and LLVM makes one instruction of it. For two
        operands that may be NaN, ``tvm_stitch.codegen.vector_math`` writes more code, and binds one of them to a
        variable.
        """
        is_number = compat.kind(b) == "FloatImm" and not math.isnan(float(b.value))
        return node(b, a) if is_number else node(a, b)

    def differ(self, a: Expr, b: Expr) -> Expr:
        return self.negated(tir.EQ(a, b))  # TVM's NE is false if one operand is NaN

    def negated(self, x: Expr) -> Expr:
        if compat.is_load(x):
            return tir.Not(x)
        return _truth(_byte(x) ^ compat.const(1, "int8"))

    def both_or_any(self, node: type[Any], a: Expr, b: Expr) -> Expr:
        return _truth(_byte(a) & _byte(b) if node is tir.And else _byte(a) | _byte(b))

    def wrapped(self, node: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
        dtype = compat.dtype_of(a)
        signed, bits = not dtype.startswith("u"), bits_of(dtype)
        # Differences of unsigned integers may be negative, and their products need all bits.
        wide = f"{'u' if not signed and node is tir.Mul else ''}int{2 * bits}"
        other = f"{'u' if signed else ''}int{bits}"
        if bits == 64:  # TVM's code generation takes numbers of 128 bits only if 64 bits hold them
            a, b = (x if compat.int_value(x) is None else or_zero(x) for x in (a, b))
        # TVM refuses to fold a cast of a number that its type does not hold.
        result = tir.Cast(other, or_zero(node(_cast(a, wide), _cast(b, wide))))
        return tir.reinterpret(dtype, or_zero(result))

    def narrowed(self, x: Expr, dtype: str) -> Expr:
        return or_zero(tir.Cast(dtype, or_zero(x)))

    def shifted_left(self, make: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
        return make(self.unbounded(a), b) if bits_of(compat.dtype_of(a)) == 64 else make(a, b)

    def unbounded(self, x: Expr) -> Expr:
        return or_zero(x)


DEVICE = DeviceArithmetic()
HOST = HostArithmetic()


def _leaf(x: Expr) -> Buffer | float | None:
    """Return the buffer that an operand is read from, or its number, or None for any other operand."""
    if compat.kind(x) == "FloatImm":
        return float(x.value)
    if compat.kind(x) == "Cast":
        x = x.value
    return compat.load_buffer(x) if compat.is_load(x) else None


def _bool(x: Expr, second: bool) -> Expr:
    return x if compat.is_load(x) else as_c_type(x, "bool", second)


def _cast(x: Expr, dtype: str) -> Expr:
    value = compat.int_value(x)
    if value is not None and bits_of(dtype) <= 64:
        bits = bits_of(dtype)
        return compat.const(value % 2**bits if dtype.startswith("u") else value, dtype)
    return x if compat.dtype_of(x) == dtype else tir.Cast(dtype, x)


def _unsigned(x: Expr, dtype: str) -> Expr:
    """Return a value converted in CUDA C. TVM refuses to fold a cast if it finds out that the number is negative."""
    known = compat.dtype_of(x) == dtype or compat.int_value(x) is not None
    return _cast(x, dtype) if known else as_c_type(x, dtype)


def _byte(x: Expr) -> Expr:
    return tir.Cast("int8", x)


def _truth(x: Expr) -> Expr:
    return tir.NE(x, compat.const(0, "int8"))
