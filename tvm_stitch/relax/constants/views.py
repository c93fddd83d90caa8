# SPDX-License-Identifier: Apache-2.0
"""ConstantViews: transposed, reshaped, cast and split constants, at compile time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import tvm
from tvm import relax

from ...graph.extent import is_static
from ...support.module_pass import module_pass
from ..rewriting.functions import with_own_functions
from ..rewriting.operators import operator_name
from ..rewriting.views import RESHAPES, parts_of, permutation, shape_of

_FLOATS = {"float32", "float16", "bfloat16"}
_INTEGERS = {"bool", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64))}
"""Casts are folded between floats, and between integers, where NumPy wraps around as a kernel does.

TVM's legalization refuses an integer that does not fit into the type of the result. Floats outside the range of an
integer type are left to ``FoldConstants``.
"""

Meaning = Callable[[np.ndarray, Any, tuple[Any, ...]], np.ndarray]


def _cast(array: np.ndarray, call: Any, _shape: tuple[Any, ...]) -> np.ndarray:
    with np.errstate(over="ignore"):  # to an infinity, as everywhere
        return array.astype(str(call.ty.dtype))


FOLDED: dict[str, Meaning] = {
    "relax.permute_dims": lambda array, call, shape: array.transpose(permutation(call, len(shape))),
    "relax.astype": _cast,
    **dict.fromkeys(RESHAPES, lambda array, _call, shape: array.reshape(shape)),
}
"""The operators that are folded, of a constant and the shape of the result."""


@module_pass
class ConstantViews:
    """Fold operators that rearrange a constant, split it, or cast it between floats or between integers, with NumPy.

    ``FoldConstant`` compiles and runs a function for each of them, which was 16 of the 28 seconds that MobileNetV3 took
    to compile. Equal views of one constant become one constant. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        known: dict[Any, Any] = {}

        def folded(func: Any) -> Any:
            mutator = _Mutator(known)
            made = mutator.visit_expr(func)
            return relax.analysis.remove_all_unused(made) if mutator.split else made

        return with_own_functions(mod, folded)


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, known: dict[Any, Any]):
        super().__init__()
        self.known = known
        self.split = False
        """Whether a split is read no longer."""

    def visit_dataflow_var_(self, var: Any) -> Any:  # pylint: disable=arguments-renamed
        bound = self.lookup_binding(var)
        return bound if isinstance(bound, tvm.ir.GenericConst) else super().visit_dataflow_var_(var)

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        name = operator_name(call)
        if name not in FOLDED:
            return call
        source = call.args[0]
        shape = shape_of(call)
        if not isinstance(source, tvm.ir.GenericConst) or shape is None or not is_static(shape):
            return call
        array, dtype = source.value, str(call.ty.dtype)
        types = {str(array.dtype), dtype}
        is_cast = types <= _FLOATS or types <= _INTEGERS
        if "float8" in dtype or (name == "relax.astype" and not is_cast):
            return call
        key = array, name, str(getattr(call.attrs, "axes", "")), shape, dtype
        return self._once(key, dtype, lambda: FOLDED[name](array.numpy(), call, shape).reshape(shape))

    def visit_tuple_getitem_(self, item: Any) -> Any:  # pylint: disable=arguments-renamed
        item = super().visit_tuple_getitem_(item)
        tuple_ = item.tuple_value
        call = self.lookup_binding(tuple_) if isinstance(tuple_, relax.Var) else tuple_
        if operator_name(call) != "relax.split" or not isinstance(call.args[0], tvm.ir.GenericConst):
            return item
        self.split = True
        array, index = call.args[0].value, item.index
        key = array, "relax.split", str(call.attrs), index
        return self._once(key, str(array.dtype), lambda: _part(call, index))

    def _once(self, key: Any, dtype: str, made: Callable[[], np.ndarray]) -> Any:
        """A constant, made where none is known by its key."""
        if key not in self.known:
            array = made()
            self.known[key] = relax.const(np.ascontiguousarray(array).reshape(array.shape), dtype)
        return self.known[key]


def _part(split: Any, index: int) -> np.ndarray:
    array = split.args[0].value.numpy()
    axis = int(split.attrs.axis) % array.ndim
    return array[(slice(None),) * axis + (slice(*parts_of(split)[index]),)]
