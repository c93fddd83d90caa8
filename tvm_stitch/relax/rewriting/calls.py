# SPDX-License-Identifier: Apache-2.0
"""Calls of some operators rewritten one by one."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import tvm
from tvm import relax

from .functions import own_functions
from .operators import has_operators, operator_name

Rewrite = Callable[[Any, Any], Any]
"""Makes, with a builder of what it needs before, what stands for a call: the call itself where it stays."""

RewriteBound = Callable[[Any, Any, Any], Any]
"""The same, given the variable that the call was bound to as well."""


def with_calls(mod: tvm.IRModule, operators: Container[str], rewrite: Rewrite) -> tvm.IRModule:
    """The module with ``rewrite(builder, call)`` for its own functions' calls of some operators, operands first."""
    return with_bound_calls(mod, operators, lambda builder, call, _var: rewrite(builder, call))


def with_bound_calls(mod: tvm.IRModule, operators: Container[str], rewrite: RewriteBound) -> tvm.IRModule:
    """The same with ``rewrite(builder, call, var)``."""
    if not has_operators(mod, operators):
        return mod
    mutator = _Calls(mod, operators, rewrite)
    for gvar, func in own_functions(mod):
        mutator.builder_.update_func(gvar, mutator.visit_expr(func))
    return mutator.builder_.get()


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, operators: Container[str], rewrite: RewriteBound):
        super().__init__(mod)
        self.operators, self.rewrite = operators, rewrite
        self.var: Any = None

    def visit_var_binding_(self, binding: Any) -> None:
        self.var = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        var, call = self.var, super().visit_call_(call)
        return self.rewrite(self.builder_, call, var) if operator_name(call) in self.operators else call
