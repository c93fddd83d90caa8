# SPDX-License-Identifier: Apache-2.0
"""Slices that are written into a tensor, legalized to reads that stay inside the slice.

Fault: TVM reads an element of the slice for every element of the tensor, and clamps the index to the tensor's extent
    instead of the slice's. For a shorter slice it reads memory behind the slice.
Seen in: TVM 0.27.0
Input: ``R.slice_scatter(x, y, 1, 3, 1, axis=0)`` of (9,) and (2,) float32
Upstream: none known
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.topi import tag

from ...compat import int_value
from ...graph.extent import is_static
from ...relax.rewriting.views import shape_of


def _slice_scatter(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, source, *numbers = call.args
    shape, length, axis = shape_of(data), shape_of(source), int(call.attrs.axis)
    start, end, step = (int_value(getattr(number, "value", number)) for number in numbers)
    if start is None or end is None or step is None or start < 0 or step < 1:
        return call.op.get_attr("FLegalize")(builder, call)
    if shape is None or length is None or not is_static((shape[axis], length[axis])):
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(
        scattered, data, source, axis, start, end, step, primfunc_name_hint="slice_scatter"
    )


SLICE_SCATTERS = {"relax.slice_scatter": _slice_scatter}
"""Legalizations for ``LegalizeOps``."""


def scattered(data: te.Tensor, source: te.Tensor, axis: int, start: int, end: int, step: int) -> te.Tensor:
    """Return ``data`` with ``source`` in place of its elements ``start:end:step`` along an axis."""
    axis %= len(data.shape)

    def element(*indices: Any) -> Any:
        at = indices[axis]
        first, last, by, none = (tirx.const(number, "int64") for number in (start, end, step, 0))
        inside = []
        inside += [tirx.LE(first, at)] if start > 0 else []
        inside += [tirx.LT(at, last)] if end < int(data.shape[axis]) else []
        inside += [tirx.EQ(tirx.floormod(at - first, by), none)] if step > 1 else []
        position = tirx.floordiv(at - first, by) if step > 1 else at - first
        taken = source(*indices[:axis], position, *indices[axis + 1 :])
        return tirx.if_then_else(tirx.all(*inside), taken, data(*indices)) if inside else taken

    return te.compute(data.shape, element, name="slice_scatter", tag=tag.INJECTIVE)
