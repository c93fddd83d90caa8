# SPDX-License-Identifier: Apache-2.0
"""InlinedChains: bound what TVM's GPU schedules inline into one kernel.

TVM fuses a chain of injective functions, and its schedules write each function's value at each read of it. If each
function reads the one before several times, the kernel's size is a power of the length of the chain. A scan that
doubles its reach in each step is such a chain. A kernel ends before a chain gets too long, and its value is stored.
"""

from __future__ import annotations

from collections import Counter

import tvm
from tvm import relax

from ...cost.choices import Choices
from ...scope.fusion import Pattern
from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.values import bindings_of, operands_of
from ..stitch.dataflow import call_args, is_call_tir


@module_pass
class InlinedChains:
    """Mark calls of injective functions like reductions, which end a kernel, if the chain before is too long.

    Args:
        choices: the device's constants of choice.

    Runs on calls of tensor functions with annotated patterns. A marked call has a function of its own. Stitching takes
    marked calls like others: it reads functions, not marks.
    """

    def __init__(self, choices: Choices):
        self.choices = choices

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        most = self.choices.inlined_operations
        long = [var for _, func in own_functions(mod) for var in _ends(mod, func, most)]
        if not long:
            return mod
        marked: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar] = {}

        def ending(match: Match) -> relax.Expr | None:
            call = match.value
            if not is_call_tir(call):
                return None
            name = call.args[0]
            if name not in marked:
                func = mod[name].without_attr("global_symbol").with_attr("op_pattern", int(Pattern.REDUCE))
                marked[name] = match.builder.add_func(func, name.name_hint)
            return relax.Call(call.op, [marked[name], *call.args[1:]], call.attrs, call.ty_args)

        return apply_rules(mod, [Rule("a kernel ends here", ending, variables=long)])


def _ends(mod: tvm.IRModule, func: relax.Function, most: int) -> list[relax.Var]:
    """Return the results of injective functions behind which a kernel must end."""
    sizes: Counter[relax.Expr] = Counter()
    found = []
    for binding in bindings_of(func.body):
        call = binding.value
        if not is_call_tir(call):
            if not isinstance(call, relax.Call):
                sizes[binding.var] = sum(sizes[v] for v in operands_of(call))
            continue
        pattern = int((mod[call.args[0]].attrs or {}).get("op_pattern", Pattern.OPAQUE))
        if pattern > Pattern.INJECTIVE:
            continue
        size = 1 + sum(sizes[v] for arg in call_args(call)[0] for v in operands_of(arg))
        if size > most:
            found.append(binding.var)
        else:
            sizes[binding.var] = size
    return found
