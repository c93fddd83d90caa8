# SPDX-License-Identifier: Apache-2.0
"""WideOperators: in float32, operators that TVM does not lower for bfloat16."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..interrupts import carrying
from .functions import with_own_functions
from .operators import operator_name

WIDENED = tuple(
    f"relax.{name}"
    for name in ("nn.layer_norm", "nn.group_norm", "nn.instance_norm", "power", "argmax", "argmin")
)
"""Operators whose legalization, or what follows, is an error for bfloat16."""


@tvm.transform.module_pass(opt_level=0, name="WideOperators")
class WideOperators:
    """Cast the operands of such an operator to float32, and its result back. Runs before ``LegalizeOps``."""

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the Relax functions that have such calls."""
        return with_own_functions(mod, lambda func: _Mutator().visit_expr(func))


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        if operator_name(call) not in WIDENED or not _is_bfloat16(call.args[0]):
            return call
        args = [relax.op.astype(arg, "float32") if _is_bfloat16(arg) else arg for arg in call.args]
        made = relax.Call(call.op, list(map(self.builder_.emit, args)), call.attrs, call.ty_args, call.span)
        return relax.op.astype(self.builder_.emit(made), "bfloat16") if _is_bfloat16(call) else made


def _is_bfloat16(value: Any) -> bool:
    return str(getattr(value.ty, "dtype", "")) == "bfloat16"
