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
    """Return the maximum (``tir.Max``) or minimum of two floats, or NaN if one of them is NaN."""
    if compat.kind(a) == "FloatImm" and not math.isnan(float(a.value)):
        return node(a, b)
    return keeping_nan(node, a, scope.let(b))


def keeping_nan(node: type[Any], a: Expr, b: Expr) -> Expr:
    """Return the maximum or minimum of ``a`` and ``b``, or NaN if one of them is NaN. ``b`` is used three times.

    TVM's own operations return the second operand if an operand is NaN, because a comparison with NaN is false. So a
    NaN in ``a`` stays. A NaN in ``b`` sets all bits of the result, which makes it NaN. That order has the shortest
    latency from an accumulator ``a`` to the next, on which a reduction waits.
    """
    dtype = dtype_of(b)
    bits = f"int{dtype[5:]}"
    mask = tir.Select(is_nan(b), tir.const(-1, bits), tir.const(0, bits))
    return tir.reinterpret(dtype, tir.reinterpret(bits, node(b, a)) | mask)


def is_nan(x: Expr) -> Expr:
    """Return True if a float32 or float64 is NaN. ``x`` is used twice.

    TVMs with Relay tell LLVM's code generation that there are no NaN. Then LLVM assumes that no float differs from
    itself.
    """
    return HOST.differ(HOST.identity(x), x) if compat.COMPARES_NAN else is_nan_by_bits(x)


def is_nan_by_bits(x: Expr) -> Expr:
    """Return True if a float32 or float64 is NaN, by integer operations alone."""
    if dtype_of(x) == "float32":
        return magnitude_bits(x) > i32(EXPONENT_BITS)
    bits = tir.reinterpret("int64", x) & tir.const(0x7FFFFFFFFFFFFFFF, "int64")
    return bits > tir.const(0x7FF0000000000000, "int64")
