# SPDX-License-Identifier: Apache-2.0
"""FewLargest: compute the few largest or smallest elements of rows as reductions, which can be stitched.

A router of a mixture of experts takes two to eight of its scores, and a sampler a few of a vocabulary's. Each pick is
one maximum of the elements after the pick before. TVM sorts rows, by a call on a CPU and by several kernels on a GPU.

An element and its index are one integer of 64 bits. The upper half is the element as an integer of the same order, NaN
above all numbers. The lower half counts down from the first index. So no two elements are equal, the first of
equal elements comes first, and one reduction finds both the element and its index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, tirx

from ...device import DeviceModel
from ...support.module_pass import module_pass
from ..rewriting.calls import with_calls
from ..rewriting.views import shape_of
from .arg_reductions import LARGEST_INT32

TOP_K = "relax.topk"
NARROW = ("float16", "bfloat16", "float32", "int8", "uint8", "int16", "uint16", "int32", "uint32")
"""Types whose values fit the upper half."""


@module_pass
class FewLargest:
    """Rewrite ``topk`` of few elements as reductions. Runs before TVM chooses kernels for sorting.

    Args:
        device: its choices limit the number of elements that are taken of a row, and the length of a row on a CPU.
    """

    def __init__(self, device: DeviceModel):
        self.most = device.choices.most_picks
        self.longest = None if device.is_gpu else device.choices.cpu_picked_row

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_calls(mod, {TOP_K}, self._as_reductions, why="a reduction can be stitched, a sort cannot")

    def _as_reductions(self, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        (x,), attrs = call.args, call.attrs
        shape, count = shape_of(x), int(attrs.k)
        if shape is None or not shape or not 0 < count <= self.most or str(x.ty.dtype) not in NARROW:
            return call
        axis = int(attrs.axis) % len(shape)
        length = shape[axis]
        if isinstance(length, int):
            if not count <= length <= (self.longest or LARGEST_INT32):
                return call
        elif self.longest is not None:
            return call
        largest, dtype = bool(attrs.largest), str(x.ty.dtype)
        x, restored = _with_last_axis(builder, x, axis, len(shape))
        picks = restored(builder.emit(builder.call_te(picked, x, count, largest, primfunc_name_hint="topk")))
        which, found = str(attrs.ret_type), []
        if which in ("both", "values"):
            found.append(builder.call_te(elements, picks, dtype, largest, primfunc_name_hint="topk_values"))
        if which in ("both", "indices"):
            index_dtype = str(attrs.dtype) if attrs.dtype is not None else "int32"
            found.append(builder.call_te(indices, picks, index_dtype, primfunc_name_hint="topk_indices"))
        return relax.Tuple([builder.emit(each) for each in found]) if which == "both" else found[0]


def _with_last_axis(
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
        x: a tensor of one of ``NARROW``, with at least ``count`` elements along its last axis.
        count: the number of elements taken of a row.
        largest: the elements are taken from the largest on, else from the smallest on.

    Returns:
        int64, in the shape of ``x`` with ``count`` along the last axis, for ``elements`` and ``indices``.
    """
    joined = te.compute(x.shape, lambda *i: _joined(x(*i), str(x.dtype), i[-1], largest), name="joined")
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
    return te.compute(picks.shape, lambda *i: _element(picks(*i), dtype, largest), name="values")


def indices(picks: te.Tensor, dtype: str) -> te.Tensor:
    """Return the indices of ``picked`` in an integer type."""
    last = tirx.const(LARGEST_INT32, "int64")
    return te.compute(picks.shape, lambda *i: (last - (picks(*i) & last)).astype(dtype), name="indices")


def _pick(joined: te.Tensor, before: te.Tensor | None, name: str) -> te.Tensor:
    """Return the largest integer of each row, or the largest that is less than the row's pick before."""
    over = te.reduce_axis((0, joined.shape[-1]), "k")

    def reduced(*row: Any) -> Any:
        own = joined(*row, over)
        if before is not None:
            own = tirx.Select(own < before(*row), own, tirx.min_value("int64"))
        return te.max(own, over)

    return te.compute(joined.shape[:-1], reduced, name=name)


def _joined(value: Any, dtype: str, index: Any, largest: bool) -> Any:
    """Return the integer of 64 bits that holds an element and its index."""
    order = _directed(_ordered(value, dtype), largest)
    place = tirx.const(LARGEST_INT32, "int64") - index.astype("int64")
    return order * tirx.const(1 << 32, "int64") + place


def _ordered(value: Any, dtype: str) -> Any:
    """Return an integer of 64 bits, in the range of 32 bits, in the order of the values."""
    if "float" not in dtype:
        return value.astype("int64") - _middle(dtype)
    wide = value.astype("float32")
    # Both zeros are one number.
    bits = tirx.reinterpret("int32", tirx.Select(wide == 0.0, tirx.const(0, "float32"), wide))
    return tirx.Select(tirx.isnan(wide), tirx.const(LARGEST_INT32, "int32"), _turned(bits)).astype("int64")


def _element(joined: Any, dtype: str, largest: bool) -> Any:
    """Return the element of an integer that ``_joined`` made."""
    order = _directed(joined >> 32, largest)
    if "float" not in dtype:
        return (order + _middle(dtype)).astype(dtype)
    return tirx.reinterpret("float32", _turned(order.astype("int32"))).astype(dtype)


def _directed(order: Any, largest: bool) -> Any:
    """Return integers in the opposite order, unless the largest are taken. Twice, it is the identity."""
    return order if largest else tirx.const(-1, "int64") - order


def _middle(dtype: str) -> Any:
    """Return the integer that is subtracted from values of a type, so that they are in the range of int32."""
    return tirx.const(2**31 if dtype == "uint32" else 0, "int64")


def _turned(bits: Any) -> Any:
    """Return the bits of floats as integers in the floats' order, or the bits of such integers."""
    return tirx.Select(bits < 0, bits ^ tirx.const(LARGEST_INT32, "int32"), bits)
