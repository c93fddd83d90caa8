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


def with_calls(mod: tvm.IRModule, operators: Container[str], rewrite: Rewrite) -> tvm.IRModule:
    """The module with ``rewrite(builder, call)`` for its own functions' calls of some operators, operands first."""
    if not has_operators(mod, operators):
        return mod
    mutator = _Calls(mod, operators, rewrite)
    for gvar, func in own_functions(mod):
        mutator.builder_.update_func(gvar, mutator.visit_expr(func))
    return mutator.builder_.get()


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, operators: Container[str], rewrite: Rewrite):
        super().__init__(mod)
        self.operators, self.rewrite = operators, rewrite

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        return self.rewrite(self.builder_, call) if operator_name(call) in self.operators else call
