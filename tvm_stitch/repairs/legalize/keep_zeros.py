# SPDX-License-Identifier: Apache-2.0
"""KeepZeros: keep products with a constant zero, and quotients and remainders of one, from being folded.

A constant that is bound to a variable is a tensor to TVM's legalization, and stays.

Fault: TVM's legalization writes scalar constants into expressions and folds ``x * 0`` and ``0 / x`` to 0, though
    both are NaN where x is infinite or NaN.
Seen in: TVM 0.27.0
Input: ``R.multiply(x, 0.0)`` with x = inf, target llvm
Upstream: https://github.com/tile-ai/tilelang/issues/2638
"""

from __future__ import annotations

import tvm
from tvm import relax

from ...relax.rewriting.calls import with_calls
from ...support.module_pass import module_pass

_FOLDED = tuple(f"relax.{name}" for name in ("multiply", "divide", "floor_divide", "floor_mod", "mod"))


@module_pass
class KeepZeros:
    """Bind the scalar zeros of float products, quotients and remainders. Runs before ``LegalizeOps``."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_calls(mod, _FOLDED, _kept, why="TVM folds x * 0 to 0, also where x is NaN")


def _kept(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not any(map(_is_zero, call.args)):
        return call
    args = [builder.emit(a) if _is_zero(a) else a for a in call.args]
    return relax.Call(call.op, args, call.attrs, call.ty_args, call.span)


def _is_zero(arg: relax.Expr) -> bool:
    if not isinstance(arg, tvm.ir.GenericConst):
        return False
    array = arg.value
    dtype = str(array.dtype)
    return len(array.shape) == 0 and "float" in dtype and float(array.numpy()) == 0
