# SPDX-License-Identifier: Apache-2.0
"""PyTorch's pooling for TVM's importer, which misreads some of its options.

It ignores ``divisor_override``, and returns zeros for the indices of maxima. With ``ceil_mode`` TVM has windows
that begin behind the input, which PyTorch does not have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...compat import int_value
from ..symbolic.folded_windows import folded_windows
from .core import Converter, argument, results_read
from .importing.unsupported import Unsupported
from .operators.values import array, full, is_integer, type_name

AVERAGES = {1: R.nn.avg_pool1d, 2: R.nn.avg_pool2d, 3: R.nn.avg_pool3d}
ADAPTIVE = {2: R.nn.adaptive_avg_pool2d, 3: R.nn.adaptive_avg_pool3d}
MAXIMA = {1: R.nn.max_pool1d, 2: R.nn.max_pool2d, 3: R.nn.max_pool3d}
LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
"""Operators and layouts by the number of axes along which windows move."""


def pooling_converters() -> dict[str, Converter]:
    """Return the converters of pooling, for ``from_exported_program(program, custom_convert_map=...)``."""
    return {
        **{f"avg_pool{axes}d.default": partial(_average, axes) for axes in AVERAGES},
        **{f"max_pool{axes}d.default": partial(_maximum, axes, False) for axes in MAXIMA},
        **{f"max_pool{axes}d_with_indices.default": partial(_maximum, axes, True) for axes in (2, 3)},
        **{f"adaptive_max_pool{axes}d.default": partial(_adaptive_maximum, axes) for axes in (2, 3)},
        **{f"_adaptive_avg_pool{axes}d.default": partial(_adaptive_average, axes) for axes in (2, 3)},
        "col2im.default": _fold,
    }


def _fold(node: Any, importer: Any) -> relax.Expr:
    """Convert ``col2im(x, image, kernel, dilation, padding, stride)``."""
    x = importer.env[node.args[0]]
    image, kernel, dilations, padding, strides = ([int(n) for n in each] for each in node.args[1:6])
    emit, has_batch = importer.block_builder.emit, len(x.ty.shape) == 3
    x = x if has_batch else emit(R.expand_dims(x, 0))
    folded = emit(
        importer.block_builder.call_te(
            folded_windows, x, image, kernel, strides, dilations, [*padding, *padding],
            primfunc_name_hint="fold",
        )
    )  # fmt: skip
    return folded if has_batch else emit(R.squeeze(folded, [0]))


class _Windows:
    """The windows of a node (input, kernel, stride, padding...), and the input with a batch axis."""

    def __init__(self, axes: int, node: Any, importer: Any):
        self.emit = importer.block_builder.emit
        self.axes = axes
        x = importer.env[node.args[0]]
        self.has_batch = len(x.ty.shape) == axes + 2
        self.x = x if self.has_batch else self.emit(R.expand_dims(x, 0))
        self.kernel = self._each(node.args[1])
        self.stride = self._each(argument(node, 2, "stride", None) or self.kernel)
        self.padding = self._each(argument(node, 3, "padding", 0))
        self.wanted = list(node.meta["val"][0].shape if self._of_several(node) else node.meta["val"].shape)[
            -axes:
        ]

    @staticmethod
    def _of_several(node: Any) -> bool:
        return isinstance(node.meta["val"], (tuple, list))

    def _each(self, given: Any) -> list[int]:
        """Return one number for each axis, from a single number or a sequence."""
        numbers = list(given) if isinstance(given, Sequence) else [given]
        return [int(number) for number in (numbers * self.axes if len(numbers) == 1 else numbers)]

    def pooled(self, operator: Any, ceil: bool, **how: Any) -> Any:
        """Return the result of a TVM operator, without the windows that PyTorch does not have."""
        pooled = self.emit(
            operator(
                self.x,
                self.kernel,
                strides=self.stride,
                padding=[*self.padding, *self.padding],
                ceil_mode=ceil,
                layout=LAYOUTS[self.axes],
                **how,
            )
        )
        given = [int_value(extent) for extent in list(pooled.ty.shape)[2:]]
        for at, (extent, wanted) in enumerate(zip(given, self.wanted)):
            if isinstance(extent, int) and isinstance(wanted, int) and extent > wanted:
                pooled = self.emit(R.strided_slice(pooled, [at + 2], [0], [wanted]))
        return pooled

    def as_given(self, result: Any) -> Any:
        """Return a result with a batch axis only if the input had one."""
        return result if self.has_batch else self.emit(R.squeeze(result, [0]))

    def positions(self, dilation: Sequence[int]) -> list[np.ndarray]:
        """Return for each axis the positions of each window, [windows, kernel], some of which are outside."""
        positions = []
        for at in range(self.axes):
            begins = np.arange(self.wanted[at]) * self.stride[at] - self.padding[at]
            positions.append(begins[:, None] + np.arange(self.kernel[at]) * dilation[at])
        return positions

    def extents(self) -> list[int] | None:
        """Return the input's extents along the axes of windows, or None if one is symbolic."""
        known = [int_value(extent) for extent in list(self.x.ty.shape)[2:]]
        return None if None in known else [int(extent or 0) for extent in known]


def _average(axes: int, node: Any, importer: Any) -> Any:
    """(input, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)."""
    windows = _Windows(axes, node, importer)
    ceil = bool(argument(node, 4, "ceil_mode", False))
    border = bool(argument(node, 5, "count_include_pad", True))
    divisor = argument(node, 6, "divisor_override", None)
    if is_integer(type_name(windows.x)):
        return windows.as_given(_integer_average(node, windows, border, divisor))
    average = windows.pooled(AVERAGES[axes], ceil, count_include_pad=border or divisor is not None)
    if divisor is None:
        return windows.as_given(average)
    counted = _counted(windows) / divisor
    return windows.as_given(
        windows.emit(R.multiply(average, relax.const(counted.astype(str(average.ty.dtype.dtype)))))
    )


def _integer_average(node: Any, windows: _Windows, border: bool, divisor: int | None) -> Any:
    """Return the mean of each window of integers, rounded towards zero."""
    extents, emit = windows.extents(), windows.emit
    if extents is None:
        raise Unsupported.at(node, "means of integers are imported at fixed sizes of the image only")
    positions = windows.positions([1] * windows.axes)
    there = _inside(positions, extents)
    counted = there.sum(axis=tuple(range(windows.axes, 2 * windows.axes)))
    if divisor is not None:
        counted = np.asarray(divisor)
    elif border:
        counted = _counted(windows)
    kept = [p.clip(0, extent - 1) for p, extent in zip(positions, extents)]
    seen = _gathered(windows.x, kept, emit)
    dtype = type_name(seen)
    if (~there).any():
        seen = emit(R.multiply(seen, array(there.astype(dtype))))
    total = emit(R.sum(seen, list(range(2 + windows.axes, 2 + 2 * windows.axes))))
    return emit(R.divide(total, array(np.where(counted == 0, 1, counted).astype(dtype))))


def _counted(windows: _Windows) -> np.ndarray:
    """Return the number of elements by which TVM divides the sum of each window: those up to the end of the border."""
    extents = windows.extents()
    if extents is None:
        return np.asarray(float(math.prod(windows.kernel)))
    counted = np.ones([1] * windows.axes)
    for at, extent in enumerate(extents):
        begins = np.arange(windows.wanted[at]) * windows.stride[at] - windows.padding[at]
        ends = np.minimum(begins + windows.kernel[at], extent + windows.padding[at])
        counted = counted * (ends - begins).reshape([-1] + [1] * (windows.axes - 1 - at))
    return counted


def _maximum(axes: int, with_indices: bool, node: Any, importer: Any) -> Any:
    """(input, kernel, stride, padding, dilation, ceil_mode) -> maxima, or (maxima, their indices in the image)."""
    windows = _Windows(axes, node, importer)
    dilation = windows._each(argument(node, 4, "dilation", 1))
    ceil = bool(argument(node, 5, "ceil_mode", False))
    maxima = windows.as_given(windows.pooled(MAXIMA[axes], ceil, dilation=dilation))
    if not with_indices:
        return maxima
    if 1 not in results_read(node):
        return relax.Tuple([maxima])
    extents = windows.extents()
    if extents is None:
        raise Unsupported.at(node, "indices of maxima are imported of images of fixed sizes only")
    places = _places_of_maxima(windows.x, extents, windows.positions(dilation), windows.emit)
    return relax.Tuple([maxima, windows.as_given(places)])


def _places_of_maxima(x: Any, extents: list[int], positions: list[np.ndarray], emit: Any) -> Any:
    """Return the row-major index in the image of the first maximum of each window, <N, C, windows of each axis>.

    Args:
        x: images <N, C, ...>.
        extents: the extents of an image.
        positions: for each of its axes the positions of each window, [windows, kernel]. Those outside do not count.
        emit: emits a call.
    """
    axes = len(extents)
    kept = [p.clip(0, extent - 1) for p, extent in zip(positions, extents)]
    seen, there = _gathered(x, kept, emit), _inside(positions, extents)
    index = np.zeros([1] * (2 * axes), "int64")
    for at, place in enumerate(kept):
        index = index + _spread(place * math.prod(extents[at + 1 :]), at, axes)
    dtype = str(seen.ty.dtype.dtype)
    if not there.all():
        least = -np.inf if "float" in dtype else np.iinfo(dtype).min
        seen = emit(R.where(relax.const(there), seen, relax.const(least, dtype)))
    count = math.prod(place.shape[1] for place in positions)
    windows = [place.shape[0] for place in positions]
    flat = emit(R.reshape(seen, [*list(seen.ty.shape)[:2], *windows, count]))
    first = emit(R.astype(emit(R.argmax(flat, -1)), "int64"))
    begins = (np.arange(math.prod(windows)) * count).reshape(windows)
    return emit(R.take(array(index.reshape(-1)), emit(R.add(first, array(begins))), 0, mode="fast"))


def _inside(positions: Sequence[np.ndarray], extents: Sequence[int]) -> np.ndarray:
    """Return whether each position of a window is in the image, [windows of each axis, kernel of each axis].

    Args:
        positions: for each axis of an image the positions of each window, [windows, kernel].
        extents: the extents of an image.
    """
    axes = len(extents)
    there = np.ones([1] * (2 * axes), "bool")
    for at, (place, extent) in enumerate(zip(positions, extents)):
        there = there & _spread((place >= 0) & (place < extent), at, axes)
    return there


def _spread(numbers: np.ndarray, at: int, axes: int) -> np.ndarray:
    """Return numbers of one axis, [windows, kernel], in the shape that :func:`_inside` has for all axes."""
    shape = [1] * (2 * axes)
    shape[at], shape[axes + at] = numbers.shape
    return numbers.reshape(shape)


def _gathered(x: Any, positions: list[np.ndarray], emit: Any) -> Any:
    """Return windows of images <N, C, ...> at positions along each axis, [windows, kernel] each.

    The result is <N, C, windows of each axis, kernel of each axis>.
    """
    axes = len(positions)
    for at, place in enumerate(positions):
        x = emit(R.take(x, relax.const(place.astype("int64")), 2 + 2 * at, mode="fast"))
    order = [0, 1, *(2 + 2 * at for at in range(axes)), *(3 + 2 * at for at in range(axes))]
    return x if axes == 1 else emit(R.permute_dims(x, order))


def _adaptive(axes: int, node: Any, importer: Any) -> tuple[Any, bool, list[int] | None]:
    """Return the images with a batch axis, whether they had one, and their extents if these are known."""
    x = importer.env[node.args[0]]
    has_batch = len(x.ty.shape) == axes + 2
    x = x if has_batch else importer.block_builder.emit(R.expand_dims(x, 0))
    extents = [int_value(extent) for extent in list(x.ty.shape)[2:]]
    return x, has_batch, None if None in extents else [int(extent or 0) for extent in extents]


def _adaptive_maximum(axes: int, node: Any, importer: Any) -> Any:
    """(input, size of the result) -> (maxima, their indices in the image)."""
    emit = importer.block_builder.emit
    x, has_batch, extents = _adaptive(axes, node, importer)
    if extents is None:
        raise Unsupported.at(node, "it is imported at fixed sizes of the image only")
    shape = list(node.meta["val"][0].shape)
    if 0 in shape:
        dtype = str(x.ty.dtype.dtype)
        return relax.Tuple([full(shape, 0, dtype, importer), full(shape, 0, "int64", importer)])
    positions = [_parts(extent, int(count)) for extent, count in zip(extents, node.args[1])]
    maxima = emit(R.max(_gathered(x, positions, emit), list(range(2 + axes, 2 + 2 * axes))))
    results = [maxima]
    if 1 in results_read(node):
        results.append(_places_of_maxima(x, extents, positions, emit))
    return relax.Tuple(results if has_batch else [emit(R.squeeze(each, [0])) for each in results])


def _adaptive_average(axes: int, node: Any, importer: Any) -> Any:
    """(input, size of the result) -> the mean of each part."""
    emit = importer.block_builder.emit
    x, has_batch, extents = _adaptive(axes, node, importer)
    shape = list(node.meta["val"].shape)
    counts = [int(count) for count in shape[-axes:]]
    if 0 in shape:
        return full(shape, 0, str(x.ty.dtype.dtype), importer)
    if extents is None or all(extent % count == 0 for extent, count in zip(extents, counts)):
        mean = emit(ADAPTIVE[axes](x, tuple(counts), layout=LAYOUTS[axes]))
    else:
        mean = _mean_of_parts(x, extents, counts, emit)
    return mean if has_batch else emit(R.squeeze(mean, [0]))


def _mean_of_parts(x: Any, extents: list[int], counts: list[int], emit: Any) -> Any:
    """Return the mean of each part of images <N, C, ...>, one axis after the other."""
    dtype = str(x.ty.dtype.dtype)
    if dtype in ("float16", "bfloat16"):
        x = emit(R.astype(x, "float32"))
    for at, (extent, count) in enumerate(zip(extents, counts)):
        if extent == count:
            continue
        places = _parts(extent, count)
        weights = np.zeros(places.shape, "float32")
        weights[:, 0] = 1.0
        weights[:, 1:] = places[:, 1:] != places[:, :-1]
        weights /= weights.sum(1, keepdims=True)
        axis, rank = 2 + at, len(x.ty.shape)
        seen = emit(R.take(x, relax.const(places.astype("int64")), axis, mode="fast"))
        spread = weights.astype(str(x.ty.dtype.dtype)).reshape([*places.shape, *[1] * (rank - axis - 1)])
        x = emit(R.sum(emit(R.multiply(seen, array(spread))), [axis + 1]))
    return emit(R.astype(x, dtype)) if str(x.ty.dtype.dtype) != dtype else x


def _parts(extent: int, count: int) -> np.ndarray:
    """Return the positions of each part, [count, longest]. Shorter parts repeat their last position."""
    begins = np.arange(count) * extent // count
    ends = -(-(np.arange(count) + 1) * extent // count)
    longest = int((ends - begins).max())
    return np.minimum(begins[:, None] + np.arange(longest), ends[:, None] - 1)
