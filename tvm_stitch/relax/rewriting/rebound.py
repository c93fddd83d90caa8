# SPDX-License-Identifier: Apache-2.0
"""What mutators share that bind a variable of a block to another value."""

from __future__ import annotations

from typing import Any

from tvm.relax import DataflowVar


def rebound(mutator: Any, var: Any, value: Any) -> Any:
    """Bind a new variable to ``value`` in the place of ``var``, a result of the block if that is one; gives it."""
    emit = mutator.builder_.emit if isinstance(var, DataflowVar) else mutator.builder_.emit_output
    made = emit(value, var.name)
    mutator.set_var_remap(var, made)
    return made
