# SPDX-License-Identifier: Apache-2.0
"""ShortReductions: add up a few elements far apart in memory as an element-wise operator does.

A reduction has a row of its own for each result. A thread then loads its elements one by one. An element-wise
operator loads a vector of neighbouring results' elements at each position of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import product as positions
from typing import Any

import tvm
from tvm import relax, te, tirx

from ...cost.choices import Choices
from ...graph.dtype import compute_dtype
from ...graph.extent import is_static, product
from ...support.module_pass import module_pass
from ..rewriting.calls import with_calls
from ..rewriting.operators import operator_name
from ..rewriting.views import shape_of

SUM = "relax.sum"
POOLS = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d")
LAST = "NHWC"


@module_pass
class ShortReductions:
    """Write sums of a few elements, and pools of small windows, as element-wise operators. Runs before ``LegalizeOps``.

    Several neighbouring results must read neighbouring elements: the reduced axis is not the last of more than one
    element, and a pool's channels are last.

    Args:
        choices: the device's constants of choice.
    """

    def __init__(self, choices: Choices):
        self.choices = choices

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_calls(
            mod,
            (SUM, *POOLS),
            partial(_elementwise, self.choices),
            why="vectors of neighbouring results are added",
        )


def _elementwise(choices: Choices, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape, dtype = shape_of(call.args[0]), str(call.ty.dtype)
    if shape is None or not is_static(shape) or "float" not in dtype or dtype != str(call.args[0].ty.dtype):
        return call
    result = _sum(shape, call, choices) if operator_name(call) == SUM else _pool(shape, call, choices)
    if result is None:
        return call
    hint = operator_name(call).rpartition(".")[2]
    return builder.call_te(result, call.args[0], primfunc_name_hint=hint)


def _sum(shape: Sequence[int], call: relax.Call, choices: Choices) -> Callable[[te.Tensor], te.Tensor] | None:
    if call.attrs.axis is None or len(call.attrs.axis) != 1:
        return None
    axis = int(call.attrs.axis[0]) % len(shape)
    behind = product(shape[axis + 1 :])
    if not 1 < shape[axis] <= choices.short_sum or behind % choices.neighbours:
        return None
    return partial(added, axis=axis, keepdims=bool(call.attrs.keepdims))


def _pool(
    shape: Sequence[int], call: relax.Call, choices: Choices
) -> Callable[[te.Tensor], te.Tensor] | None:
    attrs = call.attrs
    window = [int(extent) for extent in attrs.pool_size]
    layouts = {str(attrs.layout), str(attrs.out_layout) or str(attrs.layout)}
    averages = operator_name(call).endswith("avg_pool2d")
    if layouts != {LAST} or product(window) > choices.short_window or shape[-1] % choices.neighbours:
        return None
    result = shape_of(call)
    assert result is not None
    strides, dilation, padding = (
        [int(each) for each in of] for of in (attrs.strides, attrs.dilation, attrs.padding)
    )
    for d, count in enumerate(result[1:3]):
        end = (count - 1) * strides[d] + (window[d] - 1) * dilation[d] + 1
        if averages and end > padding[d] + shape[d + 1] + padding[d + 2]:
            return None  # rounded up, a window ends behind the border, and its mean counts fewer elements
    return partial(
        pooled,
        result=tuple(result),
        window=window,
        strides=strides,
        dilation=dilation,
        padding=padding,
        counts_padding=bool(attrs.count_include_pad),
        averages=averages,
    )


def added(x: te.Tensor, axis: int, keepdims: bool) -> te.Tensor:
    """Add up the elements along an axis of static extent, in float32 for half types.

    Returns:
        A tensor of the dtype of ``x``, without the axis, or with extent 1 there.
    """
    dtype, wide = str(x.dtype), compute_dtype(str(x.dtype))
    shape = [1 if a == axis else extent for a, extent in enumerate(x.shape) if keepdims or a != axis]

    def total(*index: Any) -> Any:
        before, after = index[:axis], index[axis + keepdims :]
        parts = [x(*before, n, *after).astype(wide) for n in range(int(x.shape[axis]))]
        return reduce(lambda a, b: a + b, parts).astype(dtype)

    return te.compute(shape, total, name="added")


def pooled(
    x: te.Tensor, result: Sequence[int], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], counts_padding: bool, averages: bool,
) -> te.Tensor:  # fmt: skip
    """Return the maximum or mean of each window of images with channels last, in float32 for half types.

    Args:
        x: images of the shape (batch, rows, columns, channels).
        result: the shape of the result.
        window: rows and columns of a window, and likewise ``strides`` and ``dilation``.
        padding: rows above and columns on the left of the image, then rows below and columns on the right.
        counts_padding: whether a mean counts the elements of the border, which are 0.
        averages: whether to take means.

    Returns:
        A tensor of the dtype of ``x``.
    """
    dtype, wide = str(x.dtype), compute_dtype(str(x.dtype))
    outside = tirx.const(0, wide) if averages else tirx.min_value(wide)
    sides = [int(extent) for extent in x.shape[1:3]]

    def reduced(image: Any, row: Any, column: Any, channel: Any) -> Any:
        parts, counts = [], []
        for tap in positions(*map(range, window)):
            places = [
                index * strides[d] + tap[d] * dilation[d] - padding[d]
                for d, index in enumerate((row, column))
            ]
            inside = _inside(places, sides, result[1:3], strides, dilation, tap, padding)
            value = x(image, *places, channel).astype(wide)
            parts.append(value if inside is None else tirx.if_then_else(inside, value, outside))
            if averages and not counts_padding:
                one = tirx.const(1, "int32")
                counts.append(one if inside is None else tirx.Cast("int32", inside))
        if not averages:
            return reduce(tirx.max, parts).astype(dtype)
        total = reduce(lambda a, b: a + b, parts)
        count = reduce(lambda a, b: a + b, counts) if counts else tirx.const(len(parts), "int32")
        return (total / count.astype(wide)).astype(dtype)

    return te.compute(tuple(result), reduced, name="pooled")


def _inside(
    places: Sequence[Any], sides: Sequence[int], result: Sequence[int], strides: Sequence[int],
    dilation: Sequence[int], tap: Sequence[int], padding: Sequence[int],
) -> Any:  # fmt: skip
    """Return the condition that a window's element lies in the image, None if it always does."""
    conditions = []
    for d, place in enumerate(places):
        first = tap[d] * dilation[d] - padding[d]
        last = first + (result[d] - 1) * strides[d]
        if first < 0:
            conditions.append(place >= 0)
        if last >= sides[d]:
            conditions.append(place < sides[d])
    return reduce(tirx.And, conditions) if conditions else None
