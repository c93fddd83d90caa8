# SPDX-License-Identifier: Apache-2.0
"""InlinedChains: bound what TVM's GPU schedules inline into one kernel.

TVM fuses a chain of injective functions, and its schedules write each function's value at each read of it. If each
function reads the one before several times, the kernel's size is a power of the length of the chain. A scan that
doubles its reach in each step is such a chain. A kernel ends before a chain gets too long, and its value is stored.

A function may read a window of elements each of which is computed from a window, such as a pool behind a pool. Then a
kernel ends between them, if a result would be computed from too many elements.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache

import tvm
from tvm import relax, tirx

from ... import compat
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
        long = [var for _, func in own_functions(mod) for var in _ends(mod, func, self.choices)]
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


def _ends(mod: tvm.IRModule, func: relax.Function, choices: Choices) -> list[relax.Var]:
    """Return the results of injective functions behind which a kernel must end."""
    sizes: Counter[relax.Expr] = Counter()
    windows: defaultdict[relax.Expr, int] = defaultdict(lambda: 1)  # the elements that one is computed from
    last: dict[relax.Expr, relax.Var] = {}  # the result of the last window that a value is computed from
    window_of = cache(lambda name: _window(mod[name]))
    found: list[relax.Var] = []
    for binding in bindings_of(func.body):
        call = binding.value
        if not is_call_tir(call):
            if not isinstance(call, relax.Call):
                sizes[binding.var] = sum(sizes[v] for v in operands_of(call))
            continue
        pattern = int((mod[call.args[0]].attrs or {}).get("op_pattern", Pattern.OPAQUE))
        if pattern > Pattern.INJECTIVE:
            continue
        operands = [v for arg in call_args(call)[0] for v in operands_of(arg)]
        own = window_of(call.args[0])
        for v in operands:
            if min(own, windows[v]) >= choices.window_reads and own * windows[v] > choices.window_loads:
                found.append(last[v])
                sizes[v], windows[v] = 0, 1
        size = 1 + sum(sizes[v] for v in operands)
        if size > choices.inlined_operations:
            found.append(binding.var)
        else:
            sizes[binding.var] = size
            widest = max(operands, key=lambda v: windows[v], default=binding.var)
            windows[binding.var] = own * windows[widest]
            last[binding.var] = binding.var if own >= choices.window_reads else last.get(widest, binding.var)
    return found


def _window(func: tirx.PrimFunc) -> int:
    """Return how many elements of one tensor a function reads for an element of its result."""
    loads = {compat.expression_key(load): compat.load_buffer(load) for load in compat.loads_in(func.body)}
    return max(Counter(loads.values()).values(), default=1)
