# SPDX-License-Identifier: Apache-2.0
"""ChosenProducts: products of one row by a matrix that is chosen when the model runs become sums.

A mixture of experts chooses the experts of a token, and gathers their weights. A product of gathered matrices reads a
copy of them, which is as large as the weights of all chosen experts. A sum over a gathered row reads the row where it
lies. It is memory-intensive, so an activation and a residual are in the same kernel.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax import op as R

from ... import compat
from ...support.module_pass import module_pass
from ..rewriting.operators import operator_name
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import shape_of

_GATHERS = ("relax.take", "relax.gather_nd")
MATMUL = "relax.matmul"


@module_pass
class ChosenProducts:
    """Write matmuls of gathered matrices and one vector each as sums. Runs before matmuls become library calls."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return apply_rules(
            mod, [Rule("chosen matrices are read where they lie", _sum, (MATMUL,), needs=(_GATHERS,))]
        )


def _sum(match: Match) -> relax.Expr | None:
    """Return the sum in place of a matmul of gathered matrices ``<..., N, K>`` and vectors ``<..., K>``, or None."""
    left, right = match.value.args
    dtype = str(match.before.ty.dtype)
    shapes = [shape_of(each) for each in (left, right)]
    if any(shape is None or len(shape) < 3 for shape in shapes) or "float" not in dtype:
        return None
    if compat.int_value(right.ty.shape.values[-1]) == 1 and _is_gathered(match, left):
        matrix, vector, axis = left, right, -1  # <..., N, K> by <..., K, 1>
    elif compat.int_value(left.ty.shape.values[-2]) == 1:
        gathered = _transposed(match, right)
        if gathered is None or not _is_gathered(match, gathered):
            return None
        matrix, vector, axis = gathered, left, -2  # <..., 1, K> by the transposed <..., N, K>
    else:
        return None
    *lead, _, depth = (
        vector.ty.shape.values
        if axis == -2
        else (*vector.ty.shape.values[:-2], 1, vector.ty.shape.values[-2])
    )
    emit = match.emit
    row = emit(R.reshape(vector, [*lead, 1, depth]))
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    factors = [each if str(each.ty.dtype) == wide else emit(R.astype(each, wide)) for each in (matrix, row)]
    summed = emit(R.sum(emit(R.multiply(*factors)), -1))
    narrow = summed if wide == dtype else emit(R.astype(summed, dtype))
    return R.expand_dims(narrow, axis)


def _is_gathered(match: Match, value: relax.Expr) -> bool:
    """Return whether a value is whole matrices that are chosen along the first axis of a tensor of three axes."""
    call = match.definition(value)
    if call is None or operator_name(call) not in _GATHERS or call.args[0].ty.ndim != 3:
        return False
    if operator_name(call) == "relax.take":
        return int(call.attrs.axis) == 0 if call.attrs.axis is not None else False
    indices = shape_of(call.args[1]) or ()
    return len(indices) > 0 and compat.int_value(indices[-1]) == 1 and int(call.attrs.batch_dims) == 0


def _transposed(match: Match, value: relax.Expr) -> relax.Expr | None:
    """Return the value whose last two axes another one exchanges, or None."""
    call = match.definition(value)
    if call is None or operator_name(call) != "relax.permute_dims" or call.attrs.axes is None:
        return None
    axes, rank = [int(each) for each in call.attrs.axes], value.ty.ndim
    return call.args[0] if axes == [*range(rank - 2), rank - 1, rank - 2] else None
