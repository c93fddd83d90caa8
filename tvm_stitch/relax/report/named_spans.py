# SPDX-License-Identifier: Apache-2.0
"""Names of a model's own format, kept in the spans of the calls that they become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..rewriting.functions import with_own_functions


def named_call(call: Any, name: str) -> Any:
    """The call with a name as the source in its span, which has no line: it is no place in a file."""
    span = tvm.ir.Span(tvm.ir.SourceName(name), 0, 0, 0, 0)
    return relax.Call(call.op, call.args, call.attrs, list(call.ty_args), span)


def with_named_calls(mod: tvm.IRModule, names: Mapping[str, str]) -> tvm.IRModule:
    """The module with names for calls that have none yet, by the variables that hold their results."""
    return with_own_functions(mod, lambda func: _Names(names).visit_expr(func))


@mutator
class _Names(PyExprMutator):
    def __init__(self, names: Mapping[str, str]):
        super().__init__()
        self.names = names

    def visit_var_binding_(self, binding: Any) -> None:
        value, name = binding.value, self.names.get(str(binding.var.name))
        if name and isinstance(value, relax.Call) and value.span is None:
            value = self.builder_.normalize(named_call(value, name))
            binding = relax.VarBinding(binding.var, value)
        super().visit_var_binding_(binding)
