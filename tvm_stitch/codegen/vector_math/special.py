# SPDX-License-Identifier: Apache-2.0
"""The error function of float32, without branches, tables or libm calls."""

from __future__ import annotations

from tvm_stitch.codegen.vector_math.scope import Expr, Scope, at_most, f32, fabs, horner, with_sign_of
from tvm_stitch.compat import tir

# erf(x) / x as P(x^2) / Q(x^2) on |x| <= 3.93, 2e-8 relative; all coefficients positive, so nothing cancels.
_P = (
    1.1283791453580836, 0.19078404417915384, 0.05279031249838429, 0.0037796173408765708,
    0.00028480857874120893, 2.0419666345031405e-06,
)  # fmt: skip
_Q = (
    1.0, 0.5024106765164523, 0.11425760864755743, 0.014997454595514235, 0.0011652142560463568,
    3.800403042478137e-05,
)  # fmt: skip


def erf(scope: Scope, x: Expr) -> Expr:
    """erf(x), exactly 1 in magnitude from |x| = 3.92 on: GELU multiplies 1 + erf(x) by any x, however large."""
    a = scope.let(at_most(f32(3.93), fabs(x)))
    u = scope.let(a * a)
    inner = at_most(f32(1.0), a * horner(u, _P) / horner(u, _Q))
    return with_sign_of(tir.Select(a >= f32(3.92), f32(1.0), inner), x)
