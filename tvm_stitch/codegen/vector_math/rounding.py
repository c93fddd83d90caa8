# SPDX-License-Identifier: Apache-2.0
"""nearbyint and copysign of float32 and float64 by arithmetic on bits.

LLVM's intrinsics are not used: TVMs with Relay disagree on how to call them. Some want the number of their overloaded
types.
"""

from __future__ import annotations

from ...compat import tir
from .scope import Expr, Scope, dtype_of, fabs

# By dtype: the integer of its size, and the magnitude from which every number is an integer.
_INTEGER = {"float32": "int32", "float64": "int64"}
_ALL_WHOLE = {"float32": 2.0**23, "float64": 2.0**52}


def copysign(magnitude: Expr, sign: Expr) -> Expr:
    """Return ``magnitude`` with the sign of ``sign``."""
    dtype = dtype_of(magnitude)
    integer = _INTEGER[dtype]
    rest = tir.const(2 ** (31 if dtype == "float32" else 63) - 1, integer)
    bits = (tir.reinterpret(integer, magnitude) & rest) | (tir.reinterpret(integer, sign) & ~rest)
    return tir.reinterpret(dtype, bits)


def nearbyint(scope: Scope, x: Expr) -> Expr:
    """Return the nearest integer, ties to even. Infinities, NaN and the sign of zeros stay.

    The sum rounds to an integer. Access through bits hides a cancellation from TVM's simplifier: over the reals, the
    later subtraction would undo the addition.
    """
    dtype = dtype_of(x)
    whole = tir.const(_ALL_WHOLE[dtype], dtype)
    x = scope.let(x)
    a = scope.let(fabs(x))
    rounded = tir.reinterpret(dtype, scope.let(tir.reinterpret(_INTEGER[dtype], a + whole))) - whole
    return tir.Select(a < whole, copysign(rounded, x), x)
