# SPDX-License-Identifier: Apache-2.0
"""Rewrite the calls of some operators one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection

import tvm
from tvm import relax

from .rules import Match, Rule, apply_rules

Rewrite = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
"""Returns the replacement of a call, or the call itself. The builder binds other values."""

RewriteBound = Callable[[relax.BlockBuilder, relax.Call, relax.Var], relax.Expr]
"""A :data:`Rewrite` that also takes the variable that the call was bound to."""

When = Callable[[relax.Call], bool]
"""A cheap test of a call in the function before, which every call that changes a module passes."""


def with_calls(
    mod: tvm.IRModule,
    operators: Collection[str],
    rewrite: Rewrite,
    *,
    why: str,
    when: When | None = None,
) -> tvm.IRModule:
    """Return the module with ``rewrite(builder, call)`` for its own functions' calls of some operators.

    The operands of a call are rewritten before the call.

    Args:
        mod: a module.
        operators: names of operators, such as ``"relax.exp"``.
        rewrite: the replacement of a call.
        why: the purpose of the rule.
        when: a module without a call that passes this test stays as it is.
    """
    return with_bound_calls(
        mod, operators, lambda builder, call, _var: rewrite(builder, call), why=why, when=when
    )


def with_bound_calls(
    mod: tvm.IRModule,
    operators: Collection[str],
    rewrite: RewriteBound,
    *,
    why: str,
    when: When | None = None,
) -> tvm.IRModule:
    """Return the module with ``rewrite(builder, call, var)`` for its own functions' calls of some operators.

    The arguments are those of :func:`with_calls`.
    """

    def replaced(match: Match) -> relax.Expr | None:
        value = rewrite(match.builder, match.value, match.var)
        return None if value.same_as(match.value) else value

    return apply_rules(mod, [Rule(why, replaced, operators, when=when)])
