# SPDX-License-Identifier: Apache-2.0
"""ViewedResults: a function's result that is a reshape of what a kernel makes is a view of it, not a copy.

TVM makes views of reshapes that stay within a dataflow block, and kernels of those that leave it, as behind the last
linear layer of a PyTorch model.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from ...support.module_pass import module_pass
from ..rewriting.functions import with_own_functions
from ..stitch.dataflow import is_call_tir


@module_pass
class ViewedResults:
    """Give reshapes that leave a dataflow block a name in it, and the results a second one.

    The reshape of a function's argument or of a constant stays a copy: its result must not be the caller's memory. Runs
    behind ``CanonicalizeBindings``, which would undo it.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_own_functions(mod, lambda func: _rewritten(mod, func))


def _rewritten(mod: tvm.IRModule, func: Any) -> Any:
    viewed = _viewed(mod, func)
    return _Mutator(mod, viewed).visit_expr(func) if viewed else func


def _viewed(mod: tvm.IRModule, func: Any) -> set[Any]:
    """The results that may be views of what their own block's kernels make."""
    found = set()
    for block in getattr(func.body, "blocks", ()):
        if not isinstance(block, relax.DataflowBlock):
            continue
        made = {b.var for b in block.bindings if is_call_tir(b.value) and not _is_reshape(mod, b.value)}
        for binding in block.bindings:
            if isinstance(binding.var, relax.DataflowVar) or not _is_reshape(mod, binding.value):
                continue
            (source,) = binding.value.args[1].fields
            if source in made and isinstance(source.ty, relax.TensorType):
                found.add(binding.var)
    return found


def _is_reshape(mod: tvm.IRModule, value: Any) -> bool:
    """Whether a value is the call of a function that moves no element, with one operand and no other argument."""
    if not is_call_tir(value) or len(value.args) > 2 or len(getattr(value.args[1], "fields", ())) != 1:
        return False
    func = mod[value.args[0]]
    return isinstance(func, tirx.PrimFunc) and relax.analysis.has_reshape_pattern(func)


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, viewed: set[Any]) -> None:
        super().__init__(mod)
        self.viewed = viewed

    def visit_var_binding_(self, binding: Any) -> None:
        if binding.var not in self.viewed:
            super().visit_var_binding_(binding)
            return
        inner = self.builder_.emit(self.visit_expr(binding.value), binding.var.name)
        self.set_var_remap(binding.var, self.builder_.emit_output(inner, binding.var.name))
