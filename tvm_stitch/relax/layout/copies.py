# SPDX-License-Identifier: Apache-2.0
"""DropCopies: no operator that gives its operand as it is, and no broadcast of a product's operand to batches.

PyTorch's products of more than two axes come from its decompositions with both operands expanded to the same batches. A
weight that is copied for each batch is no weight to a template, and a product broadcasts by itself.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...graph.extent import is_number, same
from ...support.module_pass import module_pass
from ..rewriting.functions import with_own_functions
from ..rewriting.operators import operator_name
from ..rewriting.views import permutation, shape_of

COPIES = ("relax.broadcast_to", "relax.astype", "relax.permute_dims", "relax.reshape")
"""Operators that may give their operand."""


@module_pass
class DropCopies:
    """Drop calls that change nothing, or only what a product does anyway; results of a function stay its own."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_own_functions(mod, lambda func: _Mutator().visit_expr(func))


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self) -> None:
        super().__init__()
        self.is_result = False

    def visit_var_binding_(self, binding: Any) -> None:
        self.is_result = not isinstance(binding.var, relax.DataflowVar)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        is_result = self.is_result
        call = super().visit_call_(call)
        if not is_result and _is_copy(call):
            return call.args[0]
        return self._product(call) if operator_name(call) == "relax.matmul" else call

    def _product(self, call: Any) -> Any:
        """The product of what its operands are before they are broadcast, where its shape stays."""
        for place in (1, 0):
            source = self._matrix(call.args[place])
            if source is None:
                continue
            args = list(call.args)
            args[place] = source
            made = self.builder_.normalize(relax.op.matmul(*args, out_dtype=call.attrs.out_dtype))
            if _same(shape_of(made), shape_of(call)):
                call = made
        return call

    def _matrix(self, operand: Any) -> Any:
        """The one matrix that an operand is a broadcast of; None if it is of several, or of none."""
        made = self.lookup_binding(operand) if isinstance(operand, relax.Var) else operand
        if operator_name(made) != "relax.broadcast_to":
            return None
        before, after = shape_of(made.args[0]), shape_of(made)
        if before is None or after is None or len(before) < 2 or not _same(before[-2:], after[-2:]):
            return None
        return made.args[0] if all(is_number(extent, 1) for extent in before[:-2]) else None


def _is_copy(call: Any) -> bool:
    name = operator_name(call)
    if name not in COPIES or str(call.args[0].ty.dtype) != str(call.ty.dtype):
        return False
    before, after = shape_of(call.args[0]), shape_of(call)
    if not _same(before, after):
        return False
    assert after is not None
    return name != "relax.permute_dims" or permutation(call, len(after)) == list(range(len(after)))


def _same(left: Any, right: Any) -> bool:
    return left is not None and right is not None and len(left) == len(right) and all(map(same, left, right))
