# SPDX-License-Identifier: Apache-2.0
"""WideningCasts: a cast to a wider type for each function that reads it.

Between two kernels is then the narrower type: each of them casts what it reads.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..interrupts import carrying
from .dataflow import GraphReader, is_call_tir, view_block
from .functions import with_own_functions
from .readers import readers_of

INJECTIVE = 2
"""The widest of TVM's patterns (``TOpPattern``) that its own fusion joins a cast before with, whatever it computes."""


@tvm.transform.module_pass(opt_level=0, name="WideningCasts")
class WideningCasts:
    """Give every element-wise reader of a cast to a wider type a cast of its own.

    Runs on calls of tensor functions, their patterns annotated. Readers that are not element-wise share the first cast.
    """

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the Relax functions."""
        return with_own_functions(mod, lambda func: _Mutator(mod, readers_of(func)).visit_expr(func))


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, readers: dict[Any, list[Any]]):
        super().__init__()
        self.mod, self.readers = mod, readers
        self.casts: dict[Any, Any] = {}

    @carrying
    def visit_dataflow_block_(self, block: Any) -> Any:
        view = view_block(block, GraphReader(self.mod))
        self.casts |= {
            node.outputs[0]: view.bindings[node].value
            for node in view.nodes
            if node.widens and not node.escapes and len(self.readers.get(node.outputs[0], ())) > 1
        }
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: Any) -> None:
        own = [var for var in self._read_by(binding) if not self.readers[var][0].same_as(binding)]
        shared = {var: self.visit_expr(var) for var in own}
        for var in own:
            cast = self.builder_.normalize(self.visit_expr(self.casts[var]))
            self.set_var_remap(var, self.builder_.emit(cast, var.name))
        super().visit_var_binding_(binding)
        for var, first in shared.items():
            self.set_var_remap(var, first)

    def _read_by(self, binding: Any) -> list[Any]:
        """The casts that a call of an element-wise function reads."""
        if not self.casts or not is_call_tir(binding.value):
            return []
        attrs = self.mod[binding.value.args[0]].attrs or {}
        if int(attrs.get("op_pattern", INJECTIVE + 1)) > INJECTIVE:
            return []
        return [var for var in relax.analysis.free_vars(binding.value) if var in self.casts]
