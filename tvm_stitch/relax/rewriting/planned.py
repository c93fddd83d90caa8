# SPDX-License-Identifier: Apache-2.0
"""PlannedRewriter: the frame of mutators that replace what some variables are bound to, as plans say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator


class PlannedRewriter(PyExprMutator):
    """Visits the calls of variables that have a plan with :meth:`replaced`; its subclasses are decorated."""

    def __init__(self, mod: tvm.IRModule):
        super().__init__(mod)
        self.mod = mod
        self.plans: dict[Any, Any] = {}
        self.plan: Any = None

    def rewritten(self, plans: Mapping[Any, dict[Any, Any]]) -> tvm.IRModule:
        """The module with the functions rewritten that have plans, and without what nothing needs any more."""
        for gvar, found in plans.items():
            if found:
                self.plans = found
                self.builder_.update_func(gvar, self.visit_expr(self.mod[gvar]))
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_var_binding_(self, binding: Any) -> None:
        """Note the plan of what is bound."""
        self.plan = self.plans.get(binding.var)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        """What stands for a call."""
        plan, self.plan = self.plan, None
        return super().visit_call_(call) if plan is None else self.replaced(plan, call)

    def replaced(self, plan: Any, call: Any) -> Any:
        """What a plan has in the place of a call."""
        raise NotImplementedError
