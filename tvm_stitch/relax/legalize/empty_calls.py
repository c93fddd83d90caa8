# SPDX-License-Identifier: Apache-2.0
"""EmptyCalls: replace operators over tensors without elements by constants.

Fault: TVM describes means, norms and running sums with divisions by extents, and folds a division by a constant 0 to
    an error. Its kernels that sort on a GPU divide by them as well. A compilation ends there.
Seen in: TVM 0.27.0
Input: ``R.variance(x)`` of (0,) float32, target llvm
Upstream: none known
"""

from __future__ import annotations

import math

import tvm
from tvm import relax

from ...graph.dtype import FLOATS
from ...repairs.legalize.empty import is_empty
from ...support.module_pass import module_pass
from ..rewriting.calls import with_calls
from ..rewriting.contents import contents_of
from ..rewriting.functions import own_functions
from ..rewriting.operators import operator_name

CALLS = ("relax.call_", "relax.builtin.", "relax.invoke_", "relax.memory.", "relax.vm.")
"""Beginnings of the names of operators that call functions or allocate tensors. These calls stay as they are."""

MEANS = ("relax.mean", "relax.variance", "relax.std")
"""Operators that divide a sum by the number of its terms."""


@module_pass
class EmptyCalls:
    """Replace calls whose results have no elements by zeros, and means of no elements by NaN.

    Only operators without side effects are replaced. An extent may have become 0 by simplification, as that of a slice
    from ``min(2, n)`` to ``min(2, n)``. ``SkipEmpty`` later makes allocations of the zeros.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        contents = [contents_of(func) for _, func in own_functions(mod)]
        called = {name: calls[0].op for each in contents for name, calls in each.items() if name}
        operators = [
            name
            for name, operator in called.items()
            if isinstance(operator, tvm.ir.Op) and operator.get_attr("FPurity") and not name.startswith(CALLS)
        ]
        return with_calls(
            mod, operators, _filled, why="TVM divides by extents that are 0", when=_has_no_elements
        )


def _types(call: relax.Call) -> list[relax.Type]:
    return list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]


def _is_mean_of_nothing(call: relax.Call) -> bool:
    return operator_name(call) in MEANS and is_empty(call.args[0].ty) and str(call.ty.dtype) in FLOATS


def _is_norm_of_nothing(call: relax.Call) -> bool:
    """Return True for a batch norm of no elements that leaves its statistics as they are."""
    return (
        operator_name(call) == "relax.nn.batch_norm"
        and is_empty(call.args[0].ty)
        and not bool(call.attrs.training)
    )


def _has_no_elements(call: relax.Call) -> bool:
    types = _types(call)
    constant = _is_mean_of_nothing(call) or _is_norm_of_nothing(call)
    return constant or (bool(types) and all(map(is_empty, types)))


def _filled(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not _has_no_elements(call):
        return call
    if _is_norm_of_nothing(call):
        return relax.Tuple([builder.emit(_of_one_value(call.args[0].ty, 0.0)), *call.args[3:5]])
    constants = [_of_one_value(ty, math.nan if _is_mean_of_nothing(call) else 0.0) for ty in _types(call)]
    if not isinstance(call.ty, relax.TupleType):
        return constants[0]
    return relax.Tuple([builder.emit(each) for each in constants])


def _of_one_value(ty: relax.TensorType, value: float) -> relax.Expr:
    if value == 0.0:
        return relax.op.zeros(ty.shape, ty.dtype)
    return relax.op.broadcast_to(relax.const(value, str(ty.dtype)), ty.shape)
