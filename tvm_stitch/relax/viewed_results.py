# SPDX-License-Identifier: Apache-2.0
"""ViewedResults: a function's result that is a reshape of what a kernel makes is a view of it, not a copy.

TVM makes views of reshapes that stay within a dataflow block, and kernels of those that leave it, as behind the last
linear layer of a PyTorch model.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from .dataflow import is_call_tir
from .functions import with_own_functions


@tvm.transform.module_pass(opt_level=0, name="ViewedResults")
class ViewedResults:
    """Move reshapes that leave a dataflow block into a block of their own, where they do not leave it directly.

    The reshape of a function's argument or of a constant stays a copy: its result must not be the caller's memory. Runs
    behind ``CanonicalizeBindings``, which would undo it.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the Relax functions that have such results."""
        return with_own_functions(mod, lambda func: _Mutator(mod, _sources(mod, func)).visit_expr(func))


def _sources(mod: tvm.IRModule, func: Any) -> dict[Any, Any]:
    """The results that may be views, each with the variable that it is a view of."""
    found = {}
    for block in getattr(func.body, "blocks", ()):
        if not isinstance(block, relax.DataflowBlock):
            continue
        made = {b.var for b in block.bindings if is_call_tir(b.value) and not _is_reshape(mod, b.value)}
        for binding in block.bindings:
            if isinstance(binding.var, relax.DataflowVar) or not _is_reshape(mod, binding.value):
                continue
            (source,) = binding.value.args[1].fields
            if source in made and isinstance(source.ty, relax.TensorType):
                found[binding.var] = source
    return found


def _is_reshape(mod: tvm.IRModule, value: Any) -> bool:
    """Whether a value is the call of a function that moves no element, with one operand and no other argument."""
    if not is_call_tir(value) or len(value.args) > 2 or len(getattr(value.args[1], "fields", ())) != 1:
        return False
    func = mod[value.args[0]]
    return isinstance(func, tirx.PrimFunc) and relax.analysis.has_reshape_pattern(func)


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, sources: dict[Any, Any]) -> None:
        super().__init__(mod)
        self.sources = sources
        self.leaving = set(sources.values())
        self.moved: list[Any] = []

    def visit_seq_expr_(self, seq: Any) -> Any:
        blocks = []
        for block in seq.blocks:
            blocks.append(self.visit_binding_block(block))
            if self.moved:
                blocks.append(relax.DataflowBlock(self.moved))
                self.moved = []
        return relax.SeqExpr(blocks, self.visit_expr(seq.body))

    def visit_var_binding_(self, binding: Any) -> None:
        var = binding.var
        if var in self.sources:
            inner, outer = relax.DataflowVar(var.name, var.ty), relax.Var(var.name, var.ty)
            self.moved += [
                relax.VarBinding(inner, self.visit_expr(binding.value)),
                relax.VarBinding(outer, inner),
            ]
            self.set_var_remap(var, outer)
        elif var in self.leaving and isinstance(var, relax.DataflowVar):
            self.set_var_remap(var, self.builder_.emit_output(self.visit_expr(binding.value), var.name))
        else:
            super().visit_var_binding_(binding)
