# SPDX-License-Identifier: Apache-2.0
"""QuantizedViews: what only moves elements moves quantized ones, where a model dequantizes them for that.

A model of quantizing and dequantizing pairs has one around every operator: ``quantize(reshape(dequantize(q)))``.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...support.module_pass import module_pass
from ..rewriting.functions import with_own_functions
from ..rewriting.operators import has_operators, operator_name
from ..rewriting.rebound import rebound
from ..rewriting.views import RESHAPES
from .parameters import DEQUANTIZE, QUANTIZE, is_per_tensor, undo_each_other

MOVES = (*RESHAPES, "relax.permute_dims", "relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d")
"""Operators of one tensor whose elements are elements of that; windows' maxima are, since scales are positive."""


@module_pass
class QuantizedViews:
    """Rewrite ``quantize(move(dequantize(q)))`` of one constant scale and zero point as ``move(q)``, which is exact.

    Without an operator between them a pair is dropped. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if not has_operators(mod, (DEQUANTIZE,)):
            return mod
        return with_own_functions(mod, _rewritten)


def _rewritten(func: Any) -> Any:
    mutator = _Mutator()
    made = mutator.visit_expr(func)
    return relax.analysis.remove_all_unused(made) if mutator.moved_any else func


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self) -> None:
        super().__init__()
        self.moved_any = False
        self.source: dict[
            Any, tuple[Any, list[Any]]
        ] = {}  # of a value: the dequantizing call, and moves behind it

    def visit_dataflow_block_(self, block: Any) -> Any:
        self.source.clear()  # another block's values are results of that block
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: Any) -> None:
        if not self.builder_.current_block_is_dataflow():
            super().visit_var_binding_(binding)
            return
        value = self.visit_expr(binding.value)
        name = operator_name(value)
        if name == QUANTIZE and value.args[0] in self.source:
            call, moves = self.source[value.args[0]]
            if undo_each_other(call, value):
                self.moved_any = True
                value = self._moved(call.args[0], moves)
        made = rebound(self, binding.var, value)
        if name == DEQUANTIZE and is_per_tensor(value):
            self.source[made] = value, []
        elif name in MOVES and value.args[0] in self.source:
            call, moves = self.source[value.args[0]]
            self.source[made] = call, [*moves, value]

    def _moved(self, value: Any, moves: list[Any]) -> Any:
        for i, move in enumerate(moves):
            value = self.builder_.emit(value) if i else value
            value = relax.Call(move.op, [value, *move.args[1:]], move.attrs, move.ty_args)
        return value
