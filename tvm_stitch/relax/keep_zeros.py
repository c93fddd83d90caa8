# SPDX-License-Identifier: Apache-2.0
"""KeepZeros: products with a constant zero, and quotients and remainders by or of one, kept from being folded.

TVM's legalization writes scalar constants into expressions, and folds ``x * 0`` and ``0 / x`` to 0 as it does, though
they are NaN where x is infinite or NaN (it refuses ``x / 0``). Bound to a variable, the constant is a tensor to it.
"""

from __future__ import annotations

import tvm
from tvm import relax

from .functions import with_own_functions
from .operators import operator_name

_FOLDED = tuple(f"relax.{name}" for name in ("multiply", "divide", "floor_divide", "floor_mod", "mod"))


@tvm.transform.module_pass(opt_level=0, name="KeepZeros")
class KeepZeros:
    """Bind the scalar zeros of float products, quotients and remainders. Runs before ``LegalizeOps``."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the Relax functions that have such operands."""
        return with_own_functions(mod, lambda func: _Mutator().visit_expr(func))


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if operator_name(call) not in _FOLDED or not any(map(_is_zero, call.args)):
            return call
        args = [self.builder_.emit(a) if _is_zero(a) else a for a in call.args]
        return relax.Call(call.op, args, call.attrs, call.ty_args, call.span)


def _is_zero(arg: relax.Expr) -> bool:
    if not isinstance(arg, tvm.ir.GenericConst):
        return False
    array = arg.value
    dtype = str(array.dtype)
    return len(array.shape) == 0 and "float" in dtype and float(array.numpy()) == 0
