# SPDX-License-Identifier: Apache-2.0
"""ConstantViews: transposed and reshaped constants, at compile time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..interrupts import carrying

Meaning = Callable[[np.ndarray, Any, list[int]], np.ndarray]


def _transposed(array: np.ndarray, call: Any, _shape: list[int]) -> np.ndarray:
    axes = call.attrs.axes
    return array.transpose(None if axes is None else [int(a) for a in axes])


def _reshaped(array: np.ndarray, _call: Any, shape: list[int]) -> np.ndarray:
    return array.reshape(shape)


VIEWS: dict[str, Meaning] = {
    "relax.permute_dims": _transposed,
    "relax.reshape": _reshaped,
    "relax.expand_dims": _reshaped,
    "relax.squeeze": _reshaped,
    "relax.flatten": _reshaped,
}
"""The operators that are folded, of a constant and the shape of the result."""


@tvm.transform.module_pass(opt_level=0, name="ConstantViews")
class ConstantViews:
    """Fold operators that only rearrange a constant, with NumPy.

    ``FoldConstant`` compiles and runs a function for each of them: half of the compile time of a model whose weights
    are transposed. Equal views of one constant become one constant. Runs before ``LegalizeOps``.
    """

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the Relax functions that have such calls."""
        mod = mod.clone()
        known: dict[Any, Any] = {}
        for gvar, func in list(mod.functions_items()):
            if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
                mutator = _Mutator()
                mutator.known = known
                mod.update_func(gvar, mutator.visit_expr(func))
        return mod


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    known: dict[Any, Any]

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        name = getattr(call.op, "name", "")
        if name not in VIEWS or not isinstance(call.ty, relax.TensorType):
            return call
        source = call.args[0]
        if isinstance(source, relax.Var):
            source = self.lookup_binding(source)
        shape = _static(call.ty)
        if not isinstance(source, tvm.ir.GenericConst) or shape is None:
            return call
        array = source.value
        if str(array.dtype) == "bfloat16" or "float8" in str(array.dtype):
            return call
        key = array, name, str(getattr(call.attrs, "axes", "")), tuple(shape)
        if key not in self.known:
            made = VIEWS[name](array.numpy(), call, shape)
            self.known[key] = relax.const(np.ascontiguousarray(made).reshape(shape), str(array.dtype))
        return self.known[key]


def _static(ty: Any) -> list[int] | None:
    """The extents of a tensor, where they are numbers."""
    if ty.shape is None:
        return None
    extents = list(ty.shape)
    if not all(isinstance(e, tvm.tirx.IntImm) for e in extents):
        return None
    return [int(e) for e in extents]
