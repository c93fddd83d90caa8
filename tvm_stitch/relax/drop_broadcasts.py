# SPDX-License-Identifier: Apache-2.0
"""DropBroadcasts: no broadcast to the shape that a tensor has, and none of a product's operand to batches.

PyTorch's products of more than two axes come from its decompositions with both operands expanded to the same batches. A
weight that is copied for each batch is no weight to a template, and a product broadcasts by itself.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..graph.extent import same
from ..interrupts import carrying
from .functions import with_own_functions
from .views import shape_of


@tvm.transform.module_pass(opt_level=0, name="DropBroadcasts")
class DropBroadcasts:
    """Drop calls of ``broadcast_to`` that change nothing, or only what a product does anyway."""

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the Relax functions that have such calls."""
        return with_own_functions(mod, lambda func: _Mutator().visit_expr(func))


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        name = getattr(call.op, "name", "")
        if name == "relax.broadcast_to" and _same(shape_of(call.args[0]), shape_of(call)):
            return call.args[0]
        return self._product(call) if name == "relax.matmul" else call

    def _product(self, call: Any) -> Any:
        """The product of what its operands are before they are broadcast, where its shape stays."""
        for place in range(2):
            source = self._source(call.args[place])
            if source is None:
                continue
            args = list(call.args)
            args[place] = source
            made = self.builder_.normalize(relax.op.matmul(*args, out_dtype=call.attrs.out_dtype))
            if _same(shape_of(made), shape_of(call)):
                call = made
        return call

    def _source(self, operand: Any) -> Any:
        """What an operand is a broadcast of, if that is a matrix or some."""
        made = self.lookup_binding(operand) if isinstance(operand, relax.Var) else operand
        if getattr(getattr(made, "op", None), "name", "") != "relax.broadcast_to":
            return None
        before, after = shape_of(made.args[0]), shape_of(made)
        if before is None or after is None or len(before) < 2 or not _same(before[-2:], after[-2:]):
            return None
        return made.args[0]


def _same(left: Any, right: Any) -> bool:
    if left is None or right is None or len(left) != len(right):
        return False
    return all(map(same, left, right))
