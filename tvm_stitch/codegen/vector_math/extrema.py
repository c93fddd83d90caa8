# SPDX-License-Identifier: Apache-2.0
"""Maxima and minima of floats that propagate NaN."""

from __future__ import annotations

import math
from typing import Any

from ... import compat
from ...compat import tir
from ...repairs.tir.arithmetic import HOST
from .scope import EXPONENT_BITS, Expr, Scope, dtype_of, i32, magnitude_bits


def extremum(scope: Scope, node: type[Any], a: Expr, b: Expr) -> Expr:
    """The maximum (``tir.Max``) or minimum of two floats; NaN if one of them is."""
    if compat.kind(a) == "FloatImm" and not math.isnan(float(a.value)):
        return node(a, b)
    return keeping_nan(node, a, scope.let(b))


def keeping_nan(node: type[Any], a: Expr, b: Expr) -> Expr:
    """The maximum or minimum of ``a`` and ``b``, which is used three times; NaN if one of them is.

    TVM's own are the second operand where one of them is NaN, since comparing it is false: a NaN in ``a`` stays. One in
    ``b`` sets all bits of the result, which makes it NaN. That takes the least time from an accumulator ``a`` to the
    next, which is what a reduction waits for.
    """
    dtype = dtype_of(b)
    bits = f"int{dtype[5:]}"
    mask = tir.Select(is_nan(b), tir.const(-1, bits), tir.const(0, bits))
    return tir.reinterpret(dtype, tir.reinterpret(bits, node(b, a)) | mask)


def is_nan(x: Expr) -> Expr:
    """Whether a float32 or float64, which is used twice, is NaN.

    TVMs with Relay tell LLVM's code generation that there are no NaN: a float that differs from itself is none to it.
    """
    return HOST.differ(HOST.identity(x), x) if compat.COMPARES_NAN else is_nan_by_bits(x)


def is_nan_by_bits(x: Expr) -> Expr:
    """Whether a float32 or float64 is NaN, told by integers alone."""
    if dtype_of(x) == "float32":
        return magnitude_bits(x) > i32(EXPONENT_BITS)
    bits = tir.reinterpret("int64", x) & tir.const(0x7FFFFFFFFFFFFFFF, "int64")
    return bits > tir.const(0x7FF0000000000000, "int64")
