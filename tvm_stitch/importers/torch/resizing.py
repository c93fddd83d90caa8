# SPDX-License-Identifier: Apache-2.0
"""PyTorch's resizing of images (``interpolate``) for TVM's importer, which samples at other positions.

For nearest pixels it asks TVM for the pixel nearest to the middle of a new one. PyTorch takes the pixel below the
new one's corner. The importer uses the ratio of both sizes, but PyTorch uses the given factor. For 7 pixels and a
factor of 1.5 that is 0.7 instead of 1 / 1.5. It also ignores the filter of ``antialias=True``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...compat import int_value
from .core import Converter, argument
from .importing.unsupported import Unsupported
from .operators.values import array, is_integer, type_name

Filter = Callable[[np.ndarray], np.ndarray]


def resizing_converters() -> dict[str, Converter]:
    """Return the converters of resizing, for ``from_exported_program(program, custom_convert_map=...)``."""
    return {
        "_upsample_bicubic2d_aa.default": _of_floats(partial(_smoothed, _cubic, 4)),
        "_upsample_bilinear2d_aa.default": _of_floats(partial(_smoothed, _triangle, 2)),
        "upsample_bilinear2d.vec": _of_floats(_bilinear),
        "upsample_nearest2d.vec": _nearest,
    }


def _of_floats(converter: Converter) -> Converter:
    """Return a converter that refuses integers: PyTorch rounds weights and results of bytes in fixed point."""

    def converted(node: Any, importer: Any) -> Any:
        if is_integer(type_name(importer.env[node.args[0]])):
            raise Unsupported.at(node, "interpolation of bytes is not imported; cast the image to float32")
        return converter(node, importer)

    return converted


def _sizes(node: Any, importer: Any) -> tuple[list[int], list[int]] | None:
    """Return height and width before and after, or None if one is symbolic."""
    before = [int_value(extent) for extent in list(importer.env[node.args[0]].ty.shape)[-2:]]
    after = [extent if isinstance(extent, int) else None for extent in node.meta["val"].shape[-2:]]
    if None in before or None in after:
        return None
    return [int(extent or 0) for extent in before], [int(extent or 0) for extent in after]


def _taken(x: Any, axis: int, positions: np.ndarray, emit: Callable[[Any], Any]) -> Any:
    if np.array_equal(positions, np.arange(int(x.ty.shape[axis]))):
        return x
    return emit(R.take(x, relax.const(positions.astype("int64")), axis, mode="fast"))


def _nearest(node: Any, importer: Any) -> Any:
    """(input, size or None, factors or None)."""
    sizes, factors = _sizes(node, importer), argument(node, 2, "scale_factors", None)
    if sizes is None or all(new % old == 0 for old, new in zip(*sizes)):
        return importer._upsample_nearest2d(node)
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    for at, (old, new) in enumerate(zip(*sizes)):
        scale = np.float32(1.0 / factors[at] if factors else old / new)
        positions = np.floor(np.arange(new, dtype="float32") * scale).astype("int64").clip(max=old - 1)
        if new == 2 * old or new == old:  # PyTorch uses no floats for these
            positions = np.arange(new) * old // new
        x = _taken(x, at + 2, positions, emit)
    return x


def _bilinear(node: Any, importer: Any) -> Any:
    """(input, size or None, align_corners, factors or None)."""
    sizes, factors = _sizes(node, importer), argument(node, 3, "scale_factors", None)
    corners = bool(argument(node, 2, "align_corners", False))
    if sizes is None or _is_ratio(sizes, factors, corners):
        return importer._upsample_bilinear2d(node)
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    for at, (old, new) in enumerate(zip(*sizes)):
        if corners:
            source = np.arange(new) * ((old - 1) / max(new - 1, 1))
        else:
            source = np.maximum((np.arange(new) + 0.5) / factors[at] - 0.5, 0.0)
        below = np.minimum(source.astype("int64"), old - 1)
        share = (source - below).reshape([new] + [1] * (1 - at))
        left = _taken(x, at + 2, below, emit)
        right = _taken(x, at + 2, np.minimum(below + 1, old - 1), emit)
        weight = array(share.astype(str(x.ty.dtype.dtype)))
        x = emit(R.add(left, emit(R.multiply(emit(R.subtract(right, left)), weight))))
    return x


def _is_ratio(sizes: tuple[list[int], list[int]], factors: Any, corners: bool) -> bool:
    """Return whether the distance of new pixels is the ratio of both sizes, as TVM assumes (less one, between
    corners).
    """
    if corners:
        return 1 not in sizes[1]
    return not factors or all(factor * old == new for factor, old, new in zip(factors, *sizes))


def _smoothed(weigh: Filter, width: int, node: Any, importer: Any) -> Any:
    """(input, size, align_corners, factor of the height or None, of the width): products with a filter's weights."""
    x, emit, sizes = importer.env[node.args[0]], importer.block_builder.emit, _sizes(node, importer)
    if sizes is None:
        raise ValueError("interpolate with antialias=True is imported at fixed sizes of the image only")
    corners = bool(node.args[2])
    factors = [argument(node, at, name, None) for at, name in ((3, "scales_h"), (4, "scales_w"))]
    dtype = str(x.ty.dtype.dtype)
    rows, columns = (
        _weights(old, new, corners, factor, weigh, width).astype(dtype)
        for old, new, factor in zip(*sizes, factors)
    )
    return emit(R.matmul(emit(R.matmul(array(rows), x)), array(np.ascontiguousarray(columns.T))))


def _weights(
    old: int, new: int, corners: bool, factor: float | None, weigh: Filter, width: int
) -> np.ndarray:
    """Return the weight of each pixel for each new one, [new, old]."""
    scale = (1.0 / factor) if factor else old / new
    if corners:
        scale = (old - 1) / (new - 1) if new > 1 else 0.0
    stretch = max(scale, 1.0)
    reach = width * 0.5 * stretch
    middles = scale * (np.arange(new) + 0.5)
    first = np.maximum((middles - reach + 0.5).astype("int64"), 0)
    end = np.minimum((middles + reach + 0.5).astype("int64"), old)
    pixels = np.arange(old)
    counted = (pixels >= first[:, None]) & (pixels < end[:, None])
    weights = np.where(counted, weigh(np.abs((pixels - middles[:, None] + 0.5) / stretch)), 0.0)
    total = weights.sum(1, keepdims=True)
    return weights / np.where(total == 0.0, 1.0, total)


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - distance, 0.0)


def _cubic(distance: np.ndarray) -> np.ndarray:
    """Return the cubic convolution of PyTorch's antialiased resizing (and Pillow's), with parameter -0.5."""
    a, x = -0.5, distance
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.select([x < 1.0, x < 2.0], [near, far], 0.0)
