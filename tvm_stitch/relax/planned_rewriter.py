# SPDX-License-Identifier: Apache-2.0
"""PlannedRewriter: the frame of mutators that replace what some variables are bound to, as plans say."""

from __future__ import annotations

from typing import Any

from tvm.relax.expr_functor import PyExprMutator


class PlannedRewriter(PyExprMutator):
    """Visits the calls of variables that have a plan with :meth:`replaced`; its subclasses are decorated."""

    def __init__(self, mod: Any):
        super().__init__(mod)
        self.plans: dict[Any, Any] = {}
        self.plan: Any = None

    def rewrite(self, gvar: Any, func: Any, plans: dict[Any, Any]) -> None:
        """Rewrite a function where variables of it have plans."""
        if plans:
            self.plans = plans
            self.builder_.update_func(gvar, self.visit_expr(func))

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
