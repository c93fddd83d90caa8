# SPDX-License-Identifier: Apache-2.0
"""ViewedResults: make a result that reshapes a kernel's output a view of it, not a copy.

TVM makes views of reshapes that stay within a dataflow block. It makes kernels of those that leave the block, for
example behind the last linear layer of a PyTorch model.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.rules import Match, Rule, apply_rules
from ..stitch.dataflow import is_call_tir


@module_pass
class ViewedResults:
    """Give reshapes that leave a dataflow block a name in it, and the results a second name.

    The reshape of a function's argument or of a constant stays a copy, because its result must not be the caller's
    memory. Runs behind ``CanonicalizeBindings``, which would undo it.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        viewed = set().union(*(_viewed(mod, func) for _, func in own_functions(mod)))
        rule = Rule("a view costs nothing", _inside, variables=viewed)
        return apply_rules(mod, [rule], unique_names=True)


def _viewed(mod: tvm.IRModule, func: relax.Function) -> set[relax.Var]:
    """Return the results that may be views of outputs of kernels in the same block."""
    viewed = set()
    for block in getattr(func.body, "blocks", ()):
        if not isinstance(block, relax.DataflowBlock):
            continue
        values = {binding.var: binding.value for binding in block.bindings}
        for var, value in values.items():
            if isinstance(var, relax.DataflowVar) or not _is_reshape(mod, value):
                continue
            (source,) = value.args[1].fields
            call = values.get(source)
            if is_call_tir(call) and not _is_reshape(mod, call) and isinstance(source.ty, relax.TensorType):
                viewed.add(var)
    return viewed


def _is_reshape(mod: tvm.IRModule, value: relax.Expr) -> bool:
    """Return whether a value calls a function of one operand, without other arguments, that moves no element."""
    if not is_call_tir(value) or len(value.args) > 2 or len(getattr(value.args[1], "fields", ())) != 1:
        return False
    func = mod[value.args[0]]
    return isinstance(func, tirx.PrimFunc) and relax.analysis.has_reshape_pattern(func)


def _inside(match: Match) -> relax.Expr:
    """Return the value, bound in its block."""
    return match.emit(match.value, match.var.name)
