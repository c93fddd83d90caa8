# SPDX-License-Identifier: Apache-2.0
"""Legalize argmax and argmin as two reductions: the extreme of a row, and the least index at which it occurs.

TVM's legalization reduces pairs of value and index, with a combiner that no stitched kernel has. Nothing was stitched
to them. A stitched kernel has the row on chip for the second reduction.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx

from ...graph.extent import as_extent, is_number, product
from ..rewriting.views import shape_of

LARGEST_INT32 = 2**31 - 1


def _legalized(builder: relax.BlockBuilder, call: relax.Call, largest: bool) -> relax.Expr:
    shape = shape_of(call.args[0])
    axis = call.attrs.axis
    if shape is None or not shape or str(call.args[0].ty.dtype) == "bool":
        return call.op.get_attr("FLegalize")(builder, call)
    reduced = shape if axis is None else (shape[int(axis) % len(shape)],)
    if any(is_number(extent, 0) for extent in reduced):
        return call.op.get_attr("FLegalize")(builder, call)
    axes = list(range(len(shape))) if axis is None else [int(axis) % len(shape)]
    return builder.call_te(
        index_of_extreme,
        call.args[0],
        axes,
        bool(call.attrs.keepdims),
        largest,
        str(call.ty.dtype),
        primfunc_name_hint="argmax" if largest else "argmin",
    )


ARG_REDUCTIONS = {
    "relax.argmax": lambda builder, call: _legalized(builder, call, True),
    "relax.argmin": lambda builder, call: _legalized(builder, call, False),
}
"""For ``LegalizeOps``. TVM legalizes those of booleans, and those along axes without elements."""


def index_of_extreme(x: te.Tensor, axes: list[int], keepdims: bool, largest: bool, dtype: str) -> te.Tensor:
    """Return the first index of the extreme of each row, or of the first NaN in a row that has NaNs.

    Args:
        x: a tensor of numbers.
        axes: one axis, or all: the index counts along them in order. The index of a row without elements is
            undefined.
        keepdims: whether the result has the axes, with extent 1.
        largest: the extreme is the largest element, else the least.
        dtype: the result's integer type.

    Returns:
        The indices, in the shape of ``x`` without the axes or with them.
    """
    rank = len(x.shape)
    kept = [a for a in range(rank) if a not in axes]
    count = product(as_extent(x.shape[axis]) for axis in axes)
    # Narrow indices take half of a vector's lanes.
    counted = "int32" if isinstance(count, int) and 2 * count <= LARGEST_INT32 else "int64"
    # NaNs come before the extreme, which itself may or may not be NaN then.
    behind = tirx.const(count, counted) if isinstance(count, int) else count
    is_float = "float" in str(x.dtype)

    def reduced(combine: Any, term: Any, name: str) -> te.Tensor:
        over = [te.reduce_axis((0, x.shape[a]), f"k{a}") for a in axes]

        def total(*outer: Any) -> Any:
            positions = dict(zip([*kept, *axes], [*outer, *over]))
            return combine(term([positions[a] for a in range(rank)]), over)

        return te.compute([x.shape[a] for a in kept], total, name=name)

    def position(index: Any) -> Any:
        own = tirx.const(0, counted)
        for axis in axes:
            own = own * x.shape[axis].astype(counted) + index[axis].astype(counted)
        value, best = x(*index), extreme(*(index[a] for a in kept))
        at = tirx.Select(tirx.EQ(value, best), own + behind, behind + behind)
        return tirx.Select(tirx.isnan(value), own, at) if is_float else at

    extreme = reduced(_extreme(largest, str(x.dtype)), lambda index: x(*index), "extreme")
    first = reduced(te.min, position, "place")
    shape = [1 if a in axes else x.shape[a] for a in range(rank)] if keepdims else first.shape

    def widened(*index: Any) -> Any:
        at = first(*(index[a] for a in kept) if keepdims else index)
        return tirx.Select(at >= behind, at - behind, at).astype(dtype)

    return te.compute(shape, widened, name="index")


def _extreme(largest: bool, dtype: str) -> Any:
    """Return a maximum or minimum that starts from infinity. TVM's starts from the last finite number."""
    if "float" not in dtype:
        return te.max if largest else te.min
    if largest:
        return te.comm_reducer(lambda a, b: tirx.max(a, b), lambda t: tirx.const(-math.inf, t), name="max")
    return te.comm_reducer(lambda a, b: tirx.min(a, b), lambda t: tirx.const(math.inf, t), name="min")
