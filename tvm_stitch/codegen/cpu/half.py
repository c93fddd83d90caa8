# SPDX-License-Identifier: Apache-2.0
"""Rounding to bfloat16 as integer arithmetic: TVM drops a cast there and back again, and may lose NaN in one alone."""

from __future__ import annotations

from collections.abc import Callable

from ... import compat
from ...compat import Expr, tir
from ...graph.ir import StitchGraph


def rounds(graph: StitchGraph) -> bool:
    """Whether anything in the graph is a bfloat16: without, there is nothing to lower."""

    def made(expr: Expr) -> bool:
        return compat.dtype_of(expr) == "bfloat16" or any(made(e) for e in compat.operands(expr))

    return any(t.dtype == "bfloat16" for t in graph.tensors()) or any(
        made(op.value) for op in graph.operators
    )


def lower_rounding(expr: Expr, bind: Callable[[Expr], Expr] | None) -> Expr:
    """Replace every pair of casts float32 -> bfloat16 -> float32 by equal arithmetic on the bits.

    ``bind`` names a value that is used several times; below an ``if_then_else`` nothing is bound.
    """
    if compat.kind(expr) == "Call" and compat.call_name(expr) == "if_then_else":
        return compat.rebuild(expr, lambda e: lower_rounding(e, None))
    if compat.kind(expr) == "Cast" and compat.dtype_of(expr) == "float32":
        inner = expr.value
        if compat.kind(inner) == "Cast" and compat.dtype_of(inner) == "bfloat16":
            value = lower_rounding(inner.value, bind)
            if compat.dtype_of(value) == "float32":
                return round_bfloat16(value, bind)
    return compat.rebuild(expr, lambda e: lower_rounding(e, bind))


def stored_as(value: Expr, dtype: str) -> Expr:
    """``value`` as an element of a tensor.

    TVM's cast to bfloat16 rounds the bits of a NaN as well: where they are nearly all ones that makes a zero of it,
    where all but the lowest are zeros an infinity.
    """
    if dtype == "bfloat16" and compat.COMPUTES_BFLOAT16 and compat.dtype_of(value) == "float32":
        bits = tir.reinterpret("int32", value)
        value = tir.reinterpret("float32", tir.Select(are_nan(bits), compat.const(0x7FC00000, "int32"), bits))
    return value if compat.dtype_of(value) == dtype else tir.Cast(dtype, value)


def round_bfloat16(value: Expr, bind: Callable[[Expr], Expr] | None = None) -> Expr:
    """The float32 nearest to ``value`` among the bfloat16 numbers (ties to even; NaN and infinities stay)."""
    return tir.reinterpret("float32", rounded_bits(value, bind))


def rounded_bits(value: Expr, bind: Callable[[Expr], Expr] | None = None) -> Expr:
    """The bits of :func:`round_bfloat16`, as int32: a bfloat16's above 16 zeros, for a NaN all of ``value``'s."""

    def i32(number: int) -> Expr:
        return compat.const(number, "int32")

    bits = tir.reinterpret("int32", value)
    if bind is not None:
        bits = bind(bits)
    odd = (bits >> i32(16)) & i32(1)
    rounded = (bits + i32(0x7FFF) + odd) & i32(-0x10000)
    return tir.Select(are_nan(bits), bits, rounded)


def are_nan(bits: Expr) -> Expr:
    """Whether a float32's bits (int32) are those of a NaN."""
    return (bits & compat.const(0x7FFFFFFF, "int32")) > compat.const(0x7F800000, "int32")
