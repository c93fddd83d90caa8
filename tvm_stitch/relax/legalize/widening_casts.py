# SPDX-License-Identifier: Apache-2.0
"""WideningCasts: a cast to a wider type, or what dequantizes integers, for each function that reads it.

Between two kernels is then the narrower type: each of them casts what it reads.

A rounded value is narrow in memory only if nobody stores its wide form. Scope identification joins such a cast with
what reads it rather than with what makes its operand. In ResNet-50 at batch 32 that took the memory-intensive part of
float16 from 0.87 to 0.58 ms on an H100.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...graph.dtype import item_bytes
from ...support.interrupts import carrying
from ...support.module_pass import module_pass
from ..quantize.parameters import is_single
from ..rewriting.functions import with_own_functions
from ..rewriting.readers import readers_of
from ..stitch.dataflow import GraphReader, call_args, is_call_tir, view_block

INJECTIVE = 2
"""The widest of TVM's patterns (``TOpPattern``) that its own fusion joins a cast before with, whatever it computes."""


@module_pass
class WideningCasts:
    """Give every element-wise reader of a cast to a wider type a cast of its own.

    Runs on calls of tensor functions, their patterns annotated. Readers that are not element-wise share the first cast.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_own_functions(mod, lambda func: _Mutator(mod, readers_of(func)).visit_expr(func))


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, readers: dict[Any, list[Any]]):
        super().__init__()
        self.mod, self.readers, self.reader = mod, readers, GraphReader(mod)
        self.casts: dict[Any, Any] = {}

    @carrying
    def visit_dataflow_block_(self, block: Any) -> Any:
        # Reading what a function computes takes long: only of those that may be such a cast, by their types.
        view = view_block(relax.DataflowBlock(list(filter(self._may_be_shared, block.bindings))), self.reader)
        self.casts |= {
            node.outputs[0]: view.bindings[node].value
            for node in view.nodes
            if node.widens and not node.escapes
        }
        return super().visit_dataflow_block_(block)

    def _may_be_shared(self, binding: Any) -> bool:
        """Whether several read a call's result, which is wider than the one tensor that it takes beside scalars."""
        if not is_call_tir(binding.value) or len(self.readers.get(binding.var, ())) < 2:
            return False
        tensors, _ = call_args(binding.value)
        if not tensors or not isinstance(binding.var.ty, relax.TensorType):
            return False
        if not all(is_single(tensor) for tensor in tensors[1:]):
            return False
        return item_bytes(str(binding.var.ty.dtype)) > item_bytes(str(tensors[0].ty.dtype))

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
