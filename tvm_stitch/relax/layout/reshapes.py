# SPDX-License-Identifier: Apache-2.0
"""CarriedReshapes: what is computed element by element of a product's result is computed before the result is reshaped.

PyTorch's linear layers multiply matrices, and reshape the result behind the bias. An activation behind the reshape has
other axes than the product, and would be a kernel of its own.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...graph.extent import is_number, same, same_shape
from ...support.module_pass import module_pass
from ..rewriting.functions import with_own_functions
from ..rewriting.operators import PRODUCTS, operator_name
from ..rewriting.rebound import rebound
from ..rewriting.views import RESHAPES, has_elements, shape_of
from .quantization import is_elementwise


@module_pass
class CarriedReshapes:
    """Carry reshapes of products, and of what is element-wise behind them, through element-wise operators.

    ``gelu(reshape(x))`` becomes ``reshape(gelu(x))``. The other operands of an operator are scalars, what depends on
    the last axis alone where the reshape keeps it, and tensors of the result's shape, which are reshaped as it was.
    Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the Relax functions in which products are reshaped."""
        return with_own_functions(mod, _rewritten)


def _rewritten(func: Any) -> Any:
    names = {operator_name(value) for value in relax.analysis.get_var2val(func).values()}
    if names.isdisjoint(RESHAPES) or names.isdisjoint(PRODUCTS):
        return func
    mutator = _Mutator()
    made = mutator.visit_expr(func)
    return relax.analysis.remove_all_unused(made) if mutator.carried_any else func


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self) -> None:
        super().__init__()
        self.carried_any = False
        self.behind: set[Any] = set()  # products' results, and what is element-wise on them
        self.source: dict[Any, Any] = {}  # of a reshape of such a value: that value

    def visit_dataflow_block_(self, block: Any) -> Any:
        self.behind.clear()  # another block's values are results of that block
        self.source.clear()
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: Any) -> None:
        if not self.builder_.current_block_is_dataflow():
            super().visit_var_binding_(binding)
            return
        value = self.visit_expr(binding.value)
        name, shape = operator_name(value), shape_of(binding.var)
        source = (
            self._carried(value, shape, str(binding.var.name)) if is_elementwise(value) and shape else None
        )
        if source is not None:
            self.carried_any = True
            self.behind.add(source)
            value = relax.op.reshape(source, binding.var.ty.shape)
        made = rebound(self, binding.var, value)
        if source is not None:
            self.source[made] = source
        elif name in RESHAPES and shape is not None:
            inner = self.source.get(value.args[0], value.args[0])
            if inner in self.behind:
                self.source[made] = inner
        elif name in PRODUCTS or (is_elementwise(value) and self._is_behind(value, shape)):
            self.behind.add(made)

    def _is_behind(self, value: Any, shape: Any) -> bool:
        """Whether an operator is element-wise on what is a product's result, or behind one."""
        return shape is not None and any(
            arg in self.behind and same_shape(shape_of(arg) or (), shape) for arg in value.args
        )

    def _carried(self, call: Any, shape: Any, result: str) -> Any:
        """The operator on what its operands are reshapes of, its ``result`` of the same name.

        None where these do not have one shape.
        """
        inner = {arg: self.source[arg] for arg in call.args if arg in self.source}
        if not inner or not all(same_shape(shape_of(arg) or (), shape) for arg in inner):
            return None
        if not has_elements(*inner):  # a reshape takes an extent of 0 for that of its operand
            return None
        before, *others = (shape_of(source) for source in inner.values())
        if not before or not all(same_shape(other or (), before) for other in others):
            return None
        args = [inner[arg] if arg in inner else self._beside(arg, before, shape) for arg in call.args]
        if any(arg is None for arg in args):
            return None
        return self.builder_.emit(relax.Call(call.op, args, call.attrs, call.ty_args), result)

    def _beside(self, arg: Any, before: Any, after: Any) -> Any:
        """An operand that is no such reshape, for the shape before: a scalar, of the last axis, or as large as all."""
        shape = shape_of(arg)
        if shape is None:
            return None
        if same_shape(shape, after):
            return relax.op.reshape(arg, relax.ShapeExpr(list(before)))
        if not all(is_number(extent, 1) for extent in shape):
            is_last = all(is_number(extent, 1) for extent in shape[:-1]) and same(shape[-1], after[-1])
            if not (is_last and same(before[-1], after[-1])):
                return None
        return arg if len(shape) <= len(before) else relax.op.reshape(arg, relax.ShapeExpr(list(shape[-1:])))
