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
from .core import Converter, argument, results_read

AVERAGES = {1: R.nn.avg_pool1d, 2: R.nn.avg_pool2d, 3: R.nn.avg_pool3d}
MAXIMA = {1: R.nn.max_pool1d, 2: R.nn.max_pool2d, 3: R.nn.max_pool3d}
LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
"""Operators and layouts by the number of axes along which windows move."""


def pooling_converters() -> dict[str, Converter]:
    """Return the converters of pooling, for ``from_exported_program(program, custom_convert_map=...)``."""
    return {
        **{f"avg_pool{axes}d.default": partial(_average, axes) for axes in AVERAGES},
        **{f"max_pool{axes}d.default": partial(_maximum, axes, False) for axes in MAXIMA},
        **{f"max_pool{axes}d_with_indices.default": partial(_maximum, axes, True) for axes in (2, 3)},
        "adaptive_max_pool2d.default": _adaptive_maximum,
    }


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
    average = windows.pooled(AVERAGES[axes], ceil, count_include_pad=border or divisor is not None)
    if divisor is None:
        return windows.as_given(average)
    counted = _counted(windows) / divisor
    return windows.as_given(
        windows.emit(R.multiply(average, relax.const(counted.astype(str(average.ty.dtype.dtype)))))
    )


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
    if axes != 2 or extents is None:
        raise ValueError("indices of maxima are imported of images of two dimensions and fixed sizes only")
    return relax.Tuple([maxima, windows.as_given(_places_of_maxima(windows, extents, dilation))])


def _places_of_maxima(windows: _Windows, extents: list[int], dilation: list[int]) -> Any:
    """Return the row-major index in the image of the first maximum of each window."""
    emit, positions = windows.emit, []
    for at in range(2):
        begins = np.arange(windows.wanted[at]) * windows.stride[at] - windows.padding[at]
        positions.append(begins[:, None] + np.arange(windows.kernel[at]) * dilation[at])
    inside = [(p >= 0) & (p < extent) for p, extent in zip(positions, extents)]
    seen = _gathered(windows.x, [p.clip(0, extent - 1) for p, extent in zip(positions, extents)], emit)
    there = inside[0][:, None, :, None] & inside[1][None, :, None, :]
    dtype = str(seen.ty.dtype.dtype)
    if not there.all():
        least = -np.inf if "float" in dtype else np.iinfo(dtype).min
        seen = emit(R.where(relax.const(there), seen, relax.const(least, dtype)))
    batch, channels, rows, columns = list(seen.ty.shape)[:4]
    flat = emit(R.reshape(seen, [batch, channels, rows, columns, math.prod(windows.kernel)]))
    first = emit(R.astype(emit(R.argmax(flat, -1)), "int64"))
    within = (np.arange(windows.kernel[0])[:, None] * dilation[0] * extents[1]) + (
        np.arange(windows.kernel[1]) * dilation[1]
    )
    begins = positions[0][:, :1] * extents[1] + positions[1][:, 0]
    moved = emit(R.take(relax.const(within.reshape(-1).astype("int64")), first, 0, mode="fast"))
    return emit(R.add(moved, relax.const(begins.astype("int64"))))


def _gathered(x: Any, positions: list[np.ndarray], emit: Any) -> Any:
    """Return windows of images <N, C, H, W> at positions of rows and columns, [count, kernel] each.

    The result is <N, C, rows, columns, kernel, kernel>.
    """
    rows, columns = (relax.const(p.astype("int64")) for p in positions)
    tall = emit(R.take(x, rows, 2, mode="fast"))
    return emit(R.permute_dims(emit(R.take(tall, columns, 4, mode="fast")), [0, 1, 2, 4, 3, 5]))


def _adaptive_maximum(node: Any, importer: Any) -> Any:
    """(input, size of the result) -> (maxima, indices). The indices must have no readers."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    if 1 in results_read(node):
        raise ValueError("adaptive_max_pool2d is imported without its indices")
    has_batch = len(x.ty.shape) == 4
    x = x if has_batch else emit(R.expand_dims(x, 0))
    extents = [int_value(extent) for extent in list(x.ty.shape)[2:]]
    if None in extents:
        raise ValueError("adaptive_max_pool2d is imported at fixed sizes of the image only")
    positions = [_parts(int(extent or 0), int(count)) for extent, count in zip(extents, node.args[1])]
    maxima = emit(R.max(_gathered(x, positions, emit), [4, 5]))
    return relax.Tuple([maxima if has_batch else emit(R.squeeze(maxima, [0]))])


def _parts(extent: int, count: int) -> np.ndarray:
    """Return the positions of each part, [count, longest]. Shorter parts repeat their last position."""
    begins = np.arange(count) * extent // count
    ends = -(-(np.arange(count) + 1) * extent // count)
    longest = int((ends - begins).max())
    return np.minimum(begins[:, None] + np.arange(longest), ends[:, None] - 1)
