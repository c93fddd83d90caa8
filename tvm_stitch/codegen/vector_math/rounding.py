# SPDX-License-Identifier: Apache-2.0
"""nearbyint and copysign of float32 and float64 by arithmetic on bits.

TVMs with Relay disagree on how LLVM's intrinsics are called (some want the number of their overloaded types).
"""

from __future__ import annotations

from ...compat import tir
from .scope import Expr, Scope, dtype_of, fabs

# By dtype: the integer of its size, and from where on every number is an integer.
_INTEGER = {"float32": "int32", "float64": "int64"}
_ALL_WHOLE = {"float32": 2.0**23, "float64": 2.0**52}


def copysign(magnitude: Expr, sign: Expr) -> Expr:
    """``magnitude`` with the sign of ``sign``."""
    dtype = dtype_of(magnitude)
    integer = _INTEGER[dtype]
    rest = tir.const(2 ** (31 if dtype == "float32" else 63) - 1, integer)
    bits = (tir.reinterpret(integer, magnitude) & rest) | (tir.reinterpret(integer, sign) & ~rest)
    return tir.reinterpret(dtype, bits)


def nearbyint(scope: Scope, x: Expr) -> Expr:
    """The nearest integer, ties to even; infinities and NaN as they are, and the sign of zeros.

    The sum rounds to an integer; passing through bits hides from TVM's simplifier that its two halves would cancel
    if numbers were real.
    """
    dtype = dtype_of(x)
    whole = tir.const(_ALL_WHOLE[dtype], dtype)
    x = scope.let(x)
    a = scope.let(fabs(x))
    rounded = tir.reinterpret(dtype, scope.let(tir.reinterpret(_INTEGER[dtype], a + whole))) - whole
    return tir.Select(a < whole, copysign(rounded, x), x)
