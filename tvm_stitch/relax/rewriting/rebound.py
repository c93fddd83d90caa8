# SPDX-License-Identifier: Apache-2.0
"""Bind a variable of a block to another value."""

from __future__ import annotations

from tvm import relax


def rebound(mutator: relax.PyExprMutator, var: relax.Var, value: relax.Expr) -> relax.Var:
    """Bind a new variable in the place of ``var``, as a result of the block if ``var`` is one, and return it."""
    emit = mutator.builder_.emit if isinstance(var, relax.DataflowVar) else mutator.builder_.emit_output
    result = emit(value, var.name)
    mutator.set_var_remap(var, result)
    return result
