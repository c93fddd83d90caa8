# SPDX-License-Identifier: Apache-2.0
"""asinh, acosh and atanh of float32, from log1p."""

from __future__ import annotations

from tvm_stitch.codegen.vector_math.logarithm import log1p
from tvm_stitch.codegen.vector_math.scope import NAN, Expr, Scope, at_most, f32, fabs, quotient, with_sign_of
from tvm_stitch.compat import tir

_LN2 = 0.6931471805599453
# Beyond, x^2 may overflow, and log(2x) is the result to the last digit.
_FAR = 2.0**60


def asinh(scope: Scope, x: Expr) -> Expr:
    """The inverse hyperbolic sine."""
    a = scope.let(fabs(x))
    near = scope.let(at_most(f32(_FAR), a))
    u = scope.let(near * near)
    t = near + u / (tir.sqrt(u + f32(1.0)) + f32(1.0))
    far = a > f32(_FAR)
    y = log1p(scope, scope.let(tir.Select(far, a, t)))
    return with_sign_of(tir.Select(far, y + f32(_LN2), y), x)


def acosh(scope: Scope, x: Expr) -> Expr:
    """The inverse hyperbolic cosine; NaN below 1."""
    far = x > f32(_FAR)
    t = scope.let(at_most(f32(_FAR), x) - f32(1.0))
    y = log1p(scope, scope.let(tir.Select(far, x, t + tir.sqrt(t * t + t * f32(2.0)))))
    return tir.Select(x < f32(1.0), f32(NAN), tir.Select(far, y + f32(_LN2), y))


def atanh(scope: Scope, x: Expr) -> Expr:
    """The inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond."""
    a = scope.let(fabs(x))
    return with_sign_of(log1p(scope, scope.let(quotient(a + a, f32(1.0) - a))) * f32(0.5), x)
