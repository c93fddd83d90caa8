# SPDX-License-Identifier: Apache-2.0
"""FewLargest: compute the few largest or smallest elements of rows as reductions, which can be stitched.

A router of a mixture of experts takes two to eight of its scores, and a sampler a few of a vocabulary's. Each pick is
one maximum of the elements after the pick before. TVM sorts rows, by a call on a CPU and by several kernels on a GPU.

An element and its index are one integer of 64 bits (``compute/selection/ordered.py``). So one reduction finds both.
``selections.py`` takes more elements of a row, and those of long rows on CPUs and by CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, tirx

from ...compute.selection import ordered
from ...device import DeviceModel
from ...support.module_pass import module_pass
from ..rewriting.calls import with_calls
from ..rewriting.views import shape_of

TOP_K = "relax.topk"


@module_pass
class FewLargest:
    """Rewrite ``topk`` of few elements as reductions. Runs before TVM chooses kernels for sorting.

    Args:
        device: its choices limit the number of elements that are taken of a row, and the length of a row.
        cuda: whether the device runs CUDA. Other GPUs have no kernel that selects, so their rows have any length.
    """

    def __init__(self, device: DeviceModel, cuda: bool):
        choices = device.choices
        self.most, self.longest = choices.most_picks, choices.cpu_picked_row
        if device.is_gpu:
            self.longest = choices.gpu_picked_row if cuda else ordered.LAST_INDEX
        self.symbolic = device.is_gpu and not cuda

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_calls(mod, {TOP_K}, self._as_reductions, why="a reduction can be stitched, a sort cannot")

    def _as_reductions(self, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        (x,), attrs = call.args, call.attrs
        shape, count = shape_of(x), int(attrs.k)
        if shape is None or not shape or not 0 < count <= self.most or str(x.ty.dtype) not in ordered.NARROW:
            return call
        axis = int(attrs.axis) % len(shape)
        length = shape[axis]
        if isinstance(length, int):
            if not count <= length <= self.longest:
                return call
        elif not self.symbolic:
            return call
        largest, dtype = bool(attrs.largest), str(x.ty.dtype)
        x, restored = with_last_axis(builder, x, axis, len(shape))
        picks = restored(builder.emit(builder.call_te(picked, x, count, largest, primfunc_name_hint="topk")))
        which, found = str(attrs.ret_type), []
        if which in ("both", "values"):
            found.append(builder.call_te(elements, picks, dtype, largest, primfunc_name_hint="topk_values"))
        if which in ("both", "indices"):
            index_dtype = str(attrs.dtype) if attrs.dtype is not None else "int32"
            found.append(builder.call_te(indices, picks, index_dtype, primfunc_name_hint="topk_indices"))
        return relax.Tuple([builder.emit(each) for each in found]) if which == "both" else found[0]


def with_last_axis(
    builder: relax.BlockBuilder, x: relax.Expr, axis: int, rank: int
) -> tuple[relax.Expr, Callable[[relax.Expr], relax.Expr]]:
    """Return a tensor whose last axis is ``axis`` of another one, and what gives a result the axes' first order."""
    if axis == rank - 1:
        return x, lambda result: result
    order = [a for a in range(rank) if a != axis] + [axis]
    back = [order.index(a) for a in range(rank)]
    moved = builder.emit(relax.op.permute_dims(x, order))
    return moved, lambda result: builder.emit(relax.op.permute_dims(result, back))


def picked(x: te.Tensor, count: int, largest: bool) -> te.Tensor:
    """Return integers for the first elements of each row in descending or ascending order.

    NaN is larger than all numbers, as in PyTorch. Of equal elements, the first comes first.

    Args:
        x: a tensor of one of ``ordered.NARROW``, with at least ``count`` elements along its last axis.
        count: the number of elements taken of a row.
        largest: the elements are taken from the largest on, else from the smallest on.

    Returns:
        int64, in the shape of ``x`` with ``count`` along the last axis, for ``elements`` and ``indices``.
    """
    joined = te.compute(
        x.shape, lambda *i: ordered.joined(x(*i), str(x.dtype), i[-1], largest), name="joined"
    )
    picks: list[te.Tensor] = []
    for number in range(count):
        picks.append(_pick(joined, picks[-1] if picks else None, f"pick{number}"))

    def of_place(*index: Any) -> Any:
        *row, place = index
        found = picks[-1](*row)
        for number, pick in reversed(list(enumerate(picks[:-1]))):
            found = tirx.Select(place == number, pick(*row), found)
        return found

    return te.compute([*x.shape[:-1], count], of_place, name="picks")


def elements(picks: te.Tensor, dtype: str, largest: bool) -> te.Tensor:
    """Return the elements of ``picked``, of the type of its operand. A negative zero is zero."""
    return te.compute(picks.shape, lambda *i: ordered.element(picks(*i), dtype, largest), name="values")


def indices(picks: te.Tensor, dtype: str) -> te.Tensor:
    """Return the indices of ``picked`` in an integer type."""
    return te.compute(picks.shape, lambda *i: ordered.index(picks(*i), dtype), name="indices")


def _pick(joined: te.Tensor, before: te.Tensor | None, name: str) -> te.Tensor:
    """Return the largest integer of each row, or the largest that is less than the row's pick before."""
    over = te.reduce_axis((0, joined.shape[-1]), "k")

    def reduced(*row: Any) -> Any:
        own = joined(*row, over)
        if before is not None:
            own = tirx.Select(own < before(*row), own, tirx.min_value("int64"))
        return te.max(own, over)

    return te.compute(joined.shape[:-1], reduced, name=name)
