# SPDX-License-Identifier: Apache-2.0
"""Identities that TVM's simplifier does not see through, and that cost nothing in machine code.

An operand in an identity equals no other operand and cancels with none. There are two identities, so that both
operands of an operation may be hidden and still differ when they are the same expression.

In CUDA C they are casts of a value to its own type, written as calls, because TVM drops its own casts of that kind.
On a CPU, where calls would not vectorize, they are bit casts to integers and back.

Fault: TVM simplifies floats as if they were real numbers: ``x - x`` is 0 and ``x == x`` is true. It simplifies int32
    and int64 as if they never overflowed, which holds for indices and not for a model's data.
Seen in: TVM 0.27.0
Input: ``y = R.add(x, x)``, then ``R.equal(y, y)``, of float32 with x = NaN, target llvm
Upstream: https://github.com/apache/tvm/issues/19503
"""

from __future__ import annotations

from ... import compat
from ...compat import Expr, tir

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "int64_t",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "uint64_t",
}
"""The types of CUDA C for the dtypes that kernels compute in."""


def as_c_type(value: Expr, dtype: str, second: bool = False) -> Expr:
    """Return a value converted to ``dtype`` as CUDA C converts it, for kernels of GPUs.

    Only names of one word are called as functions: the old TVM's kernels define ``int64_t`` as ``long long``.
    """
    name = C_TYPES[dtype]
    spelled = name if name.isalpha() and not second else f"static_cast<{name}>"
    return tir.call_pure_extern(dtype, spelled, value)


def through_bits(value: Expr, second: bool = False) -> Expr:
    """Return a float32 or float64 reinterpreted as an integer and back, for llvm.

    The integer is signed, or unsigned if ``second`` is set.
    """
    dtype = compat.dtype_of(value)
    bits = f"{'u' if second else ''}int{dtype[5:]}"
    return tir.reinterpret(dtype, tir.reinterpret(bits, value))


def or_zero(value: Expr) -> Expr:
    """Return ``value | 0``, which the simplifier may analyse but does not fold, for llvm.

    TVM's code generation for llvm refuses to reinterpret a literal 0. The simplifier makes one of ``x - x`` and of
    ``x * 0``, and of the maximum of 0 and an ``x`` that is at most 0.
    """
    return compat.unfolded_or(value, compat.const(0, compat.dtype_of(value)))


def hidden(expr: Expr) -> Expr | None:
    """Return the operand of an identity, or None for another expression."""
    if compat.kind(expr) == "BitwiseOr":
        return expr.a if compat.int_value(expr.b) == 0 else None
    if compat.kind(expr) != "Call":
        return None
    name = compat.call_name(expr)
    if name == "bitwise_or":
        return expr.args[0] if compat.int_value(expr.args[1]) == 0 else None
    if name == "reinterpret":
        inner = expr.args[0]
        same = compat.kind(inner) == "Call" and compat.call_name(inner) == "reinterpret"
        return inner.args[0] if same and compat.dtype_of(inner.args[0]) == compat.dtype_of(expr) else None
    if name == "call_pure_extern" and str(expr.args[0].value) in _SPELLINGS:
        return expr.args[1]
    return None


_SPELLINGS = frozenset(C_TYPES.values()) | frozenset(f"static_cast<{name}>" for name in C_TYPES.values())
