# SPDX-License-Identifier: Apache-2.0
"""PyTorch's resizing of images (``interpolate``) for TVM's importer, which samples at other positions.

For nearest pixels it asks TVM for the pixel nearest to the middle of a new one. PyTorch takes the pixel below the
new one's corner. The importer uses the ratio of both sizes, but PyTorch uses the given factor. For 7 pixels and a
factor of 1.5 that is 0.7 instead of 1 / 1.5. It also ignores the filter of ``antialias=True``, and rounds bytes
otherwise: PyTorch resizes them in fixed point, the columns first, and rounds between both axes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...compat import int_value
from . import symbolic_resizing
from .core import Converter, argument
from .importing.unsupported import Unsupported
from .operators.values import array, cast, constant, type_name

Filter = Callable[[np.ndarray], np.ndarray]
"""Returns weights of distances in pixels, which are not negative."""
Weights = Callable[..., np.ndarray]
"""Returns the weight of each old pixel for each new one: of both sizes, alignment, factor, filter and its width."""
BITS = 15
"""Weights of bytes are integers of fewer bits, with as many behind the point as the largest one leaves room for."""
MOST_BEHIND_THE_POINT = 22


def resizing_converters() -> dict[str, Converter]:
    """Return the converters of resizing, for ``from_exported_program(program, custom_convert_map=...)``."""
    cubic = partial(_cubic, -0.5)
    return {
        "_upsample_bicubic2d_aa.default": _by_type(partial(_smoothed, cubic, 4), _filter_weights, cubic, 4),
        "_upsample_bilinear2d_aa.default": _by_type(
            partial(_smoothed, _triangle, 2), _filter_weights, _triangle, 2
        ),
        "upsample_bicubic2d.default": _by_type(None, _tap_weights, partial(_cubic, -0.75), 4),
        "upsample_bicubic2d.vec": _by_type(_bicubic, _tap_weights, partial(_cubic, -0.75), 4),
        "upsample_bilinear2d.vec": _by_type(_bilinear, _tap_weights, _triangle, 2),
        "upsample_nearest2d.vec": _nearest,
        **symbolic_resizing.symbolic_resizing_converters(),
    }


def _by_type(of_floats: Converter | None, weights: Weights, weigh: Filter, width: int) -> Converter:
    """Return a converter of floats that resizes bytes in fixed point. Without it, floats are refused.

    Args:
        of_floats: the converter of floats.
        weights: the function that weighs pixels.
        weigh: the filter.
        width: number of pixels that the filter reads, if the image becomes no smaller.
    """

    def converted(node: Any, importer: Any) -> Any:
        if type_name(importer.env[node.args[0]]) == "uint8":
            return _of_bytes(weights, weigh, width, node, importer)
        if of_floats is None:
            raise Unsupported.at(node, "only images of bytes have this converter; floats are decomposed")
        return of_floats(node, importer)

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
    if sizes is None:
        return symbolic_resizing.nearest(node, importer)
    if all(new % old == 0 for old, new in zip(*sizes)):
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
    if sizes is None:
        return symbolic_resizing.linear(node, importer)
    if _is_ratio(sizes, factors, corners):
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


def _bicubic(node: Any, importer: Any) -> Any:
    """(input, size or None, align_corners, factors or None)."""
    if _sizes(node, importer) is None:
        return symbolic_resizing.cubic(node, importer)
    return importer._upsample_bicubic2d(node)


def _is_ratio(sizes: tuple[list[int], list[int]], factors: Any, corners: bool) -> bool:
    """Return whether the distance of new pixels is the ratio of both sizes, as TVM assumes (less one, between
    corners).
    """
    if corners:
        return 1 not in sizes[1]
    return not factors or all(factor * old == new for factor, old, new in zip(factors, *sizes))


def _of_bytes(weights: Weights, weigh: Filter, width: int, node: Any, importer: Any) -> Any:
    """(input, size or None, align_corners, factors): sums in fixed point, rounded and cut off behind each axis."""
    x, sizes = importer.env[node.args[0]], _sizes(node, importer)
    if sizes is None:
        raise Unsupported.at(
            node, "images of bytes are resized at fixed sizes only; cast the image to float32"
        )
    emit, corners, factors = importer.block_builder.emit, bool(node.args[2]), _factors(node)
    wide = cast(x, "int32", importer)
    for at in (1, 0):
        old, new = sizes[0][at], sizes[1][at]
        if old == new:
            continue
        numbers, point = _fixed_point(weights(old, new, corners, factors[at], weigh, width))
        places, own = _taps(numbers)
        axis = at + 2
        seen = emit(R.take(wide, array(places), axis, mode="fast"))
        spread = array(own.astype("int32").reshape([*own.shape, *[1] * (1 - at)]))
        total = emit(R.sum(emit(R.multiply(seen, spread)), [axis + 1]))
        total = emit(R.add(total, constant(1 << (point - 1), "int32")))
        wide = emit(R.clip(emit(R.right_shift(total, constant(point, "int32"))), 0, 255))
    return cast(wide, "uint8", importer)


def _factors(node: Any) -> list[float | None]:
    """Return the factors of height and width, or None each: one argument of overloads ``vec``, two of others."""
    if node.target._overloadname == "vec":
        factors = argument(node, 3, "scale_factors", None)
        return list(factors) if factors else [None, None]
    return [argument(node, at, name, None) for at, name in ((3, "scales_h"), (4, "scales_w"))]


def _fixed_point(weights: np.ndarray) -> tuple[np.ndarray, int]:
    """Return weights as integers, and how many of their bits are behind the point."""
    most = max(float(weights.max()), 0.0)
    point = 0
    while point < MOST_BEHIND_THE_POINT and int(0.5 + most * (1 << (point + 1))) < 1 << BITS:
        point += 1
    half = np.where(weights < 0, -0.5, 0.5)
    return np.trunc(weights * (1 << point) + half).astype("int64"), point


def _taps(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of pixels with a weight for each new one, [new, taps], and their weights."""
    old = weights.shape[1]
    counts = weights != 0
    first, last = counts.argmax(1), old - 1 - counts[:, ::-1].argmax(1)
    places = first[:, None] + np.arange(max(int((last - first).max()) + 1, 1) if counts.any() else 1)
    own = np.take_along_axis(weights, np.minimum(places, old - 1), 1)
    return np.minimum(places, old - 1), np.where(places < old, own, 0)


def _smoothed(weigh: Filter, width: int, node: Any, importer: Any) -> Any:
    """(input, size, align_corners, factor of the height or None, of the width): products with a filter's weights."""
    x, emit, sizes = importer.env[node.args[0]], importer.block_builder.emit, _sizes(node, importer)
    if sizes is None:
        raise ValueError("interpolate with antialias=True is imported at fixed sizes of the image only")
    corners, dtype = bool(node.args[2]), type_name(x)
    rows, columns = (
        _filter_weights(old, new, corners, factor, weigh, width).astype(dtype)
        for old, new, factor in zip(*sizes, _factors(node))
    )
    return emit(R.matmul(emit(R.matmul(array(rows), x)), array(np.ascontiguousarray(columns.T))))


def _step(old: int, new: int, corners: bool, factor: float | None) -> float:
    """Return the distance between new pixels, in old ones."""
    if corners:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    return (1.0 / factor) if factor else old / new


def _tap_weights(
    old: int, new: int, corners: bool, factor: float | None, weigh: Filter, width: int
) -> np.ndarray:
    """Return the weight of each pixel for each new one, [new, old]: of ``width`` pixels around it.

    Those behind an edge are the pixel at the edge.
    """
    step, rows = _step(old, new, corners, factor), np.arange(new)
    source = step * rows if corners else step * (rows + 0.5) - 0.5
    if width == 2:
        source = np.maximum(source, 0.0)
    below = np.minimum(np.floor(source).astype("int64"), old - 1)
    part = np.clip(source - below, 0.0, 1.0)
    weights = np.zeros((new, old))
    for tap in range(1 - width // 2, 1 + width // 2):
        np.add.at(weights, (rows, (below + tap).clip(0, old - 1)), weigh(np.abs(tap - part)))
    return weights


def _filter_weights(
    old: int, new: int, corners: bool, factor: float | None, weigh: Filter, width: int
) -> np.ndarray:
    """Return the weight of each pixel for each new one, [new, old], by a filter as wide as a new pixel or wider."""
    scale = _step(old, new, corners, factor)
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


def _cubic(a: float, distance: np.ndarray) -> np.ndarray:
    """Return the cubic convolution with a parameter: Pillow's and that of antialiased resizing is -0.5."""
    x = distance
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.select([x < 1.0, x < 2.0], [near, far], 0.0)
