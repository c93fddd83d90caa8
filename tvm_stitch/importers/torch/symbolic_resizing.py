# SPDX-License-Identifier: Apache-2.0
"""PyTorch's resizing of images (``interpolate``) with symbolic sizes: pixels are gathered at computed positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

from torch import fx
from tvm import te, tirx
from tvm.relax import op as R

from ...graph.extent import as_expr
from .core import Converter, argument
from .importing.unsupported import Unsupported
from .operators.values import cast, type_name

LARGEST_DENOMINATOR = 1 << 10
"""Factors of larger denominators, such as 1 / 3, give sizes that depend on their rounding."""

CUBIC = -0.75
"""PyTorch's coefficient of cubic interpolation."""

Position = Callable[[Any, Any, Any], Any]
"""Returns the position in the old image of a new pixel as a float32 expression, given both extents."""


def symbolic_resizing_converters() -> dict[str, Converter]:
    """Return the converters of operators that PyTorch decomposes if the sizes are known."""
    axes = ("1d", "2d", "3d")
    return {
        **{f"upsample_nearest{n}.vec": nearest for n in ("1d", "3d")},
        **{f"_upsample_nearest_exact{n}.vec": partial(nearest, middle=True) for n in axes},
        "upsample_linear1d.vec": linear,
        "upsample_trilinear3d.vec": linear,
    }


def nearest(node: Any, importer: Any, middle: bool = False) -> Any:
    """(input, size or None, factors or None).

    Args:
        middle: whether a new pixel takes the pixel below its middle, and not the one below its corner.
    """
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    for axis, old, new, factor in _axes(node, importer, 2):
        below = _computed(
            importer, "nearest", old, new, partial(_below, _of_corner(factor, 0.5 if middle else 0))
        )
        x = emit(R.take(x, below, axis, mode="fast"))
    return x


def linear(node: Any, importer: Any) -> Any:
    """(input, size or None, align_corners, factors or None)."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    corners, dtype = bool(argument(node, 2, "align_corners", False)), type_name(x)
    if dtype == "uint8":
        raise Unsupported.at(
            node, "images of bytes are resized at fixed sizes only; cast the image to float32"
        )
    for axis, old, new, factor in _axes(node, importer, 3):
        position = _between_corners if corners else _of_middle(factor)
        below = _computed(importer, "below", old, new, partial(_below, position))
        above = _computed(importer, "above", old, new, partial(_above, position))
        share = _computed(importer, "share", old, new, partial(_share, position))
        left, right = (emit(R.take(x, at, axis, mode="fast")) for at in (below, above))
        weight = cast(emit(R.reshape(share, [new, *[1] * (len(x.ty.shape) - axis - 1)])), dtype, importer)
        x = emit(R.add(left, emit(R.multiply(emit(R.subtract(right, left)), weight))))
    return x


def cubic(node: Any, importer: Any) -> Any:
    """(input, size or None, align_corners, factors or None)."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    corners, dtype = bool(argument(node, 2, "align_corners", False)), type_name(x)
    for axis, old, new, factor in _axes(node, importer, 3):
        position = _between_corners if corners else _of_middle(factor, -math.inf)
        total: Any = None
        for tap in range(-1, 3):
            at = _computed(importer, "tap", old, new, partial(_tap, position, tap))
            weight = _computed(importer, "weight", old, new, partial(_weight, position, tap))
            weight = cast(
                emit(R.reshape(weight, [new, *[1] * (len(x.ty.shape) - axis - 1)])), dtype, importer
            )
            term = emit(R.multiply(emit(R.take(x, at, axis, mode="fast")), weight))
            total = term if total is None else emit(R.add(total, term))
        x = total
    return x


def _axes(node: Any, importer: Any, at: int) -> list[tuple[int, Any, Any, float | None]]:
    """Return the axes of an image: the axis, the extent before and after, and the factor if one is given.

    Args:
        at: number of the argument that has the factors.
    """
    before = list(importer.env[node.args[0]].ty.shape)[2:]
    sizes, factors = argument(node, 1, "output_size", None), argument(node, at, "scale_factors", None)
    if sizes is None:
        sizes = [_times(node, old, factor) for old, factor in zip(before, factors)]
    sizes = [importer.env[size] if isinstance(size, fx.Node) else size for size in sizes]
    factors = [float(factor) for factor in factors] if factors else [None] * len(before)
    return list(zip(range(2, 2 + len(before)), before, sizes, factors, strict=True))


def _times(node: Any, extent: Any, factor: Any) -> Any:
    """Return the extent of an axis that is resized by a factor."""
    exact = Fraction(float(factor))
    if exact.denominator > LARGEST_DENOMINATOR:
        raise Unsupported.at(node, f"a symbolic size times {factor} is rounded; give the size of the result")
    times = extent * exact.numerator
    return times if exact.denominator == 1 else tirx.floordiv(times, exact.denominator)


def _computed(importer: Any, name: str, old: Any, new: Any, value: Position) -> Any:
    """Return a vector of an expression of each new pixel."""

    def vector(old: Any, new: Any) -> Any:
        return te.compute((new,), lambda i: value(i, old, new), name=name)

    return importer.block_builder.emit_te(vector, as_expr(old), as_expr(new), primfunc_name_hint=name)


def _step(factor: float | None, old: Any, new: Any) -> Any:
    """Return the distance between new pixels, in old ones, as PyTorch computes it."""
    return tirx.const(1.0 / factor, "float32") if factor else _float(old) / _float(new)


def _of_corner(factor: float | None, offset: float) -> Position:
    return lambda i, old, new: (_float(i) + tirx.const(offset, "float32")) * _step(factor, old, new)


def _of_middle(factor: float | None, least: float = 0.0) -> Position:
    """Return the position of a pixel's middle, which is ``least`` or more."""
    half, middle = tirx.const(0.5, "float32"), _of_corner(factor, 0.5)
    if least == -math.inf:
        return lambda i, old, new: middle(i, old, new) - half
    return lambda i, old, new: tirx.max(middle(i, old, new) - half, tirx.const(least, "float32"))


def _between_corners(i: Any, old: Any, new: Any) -> Any:
    gaps = tirx.max(new - 1, tirx.const(1, "int64"))
    return _float(i) * (_float(old - 1) / _float(gaps))


def _below(position: Position, i: Any, old: Any, new: Any) -> Any:
    return tirx.min(tirx.floor(position(i, old, new)).astype("int64"), old - 1)


def _above(position: Position, i: Any, old: Any, new: Any) -> Any:
    return tirx.min(_below(position, i, old, new) + 1, old - 1)


def _share(position: Position, i: Any, old: Any, new: Any) -> Any:
    return position(i, old, new) - _float(_below(position, i, old, new))


def _tap(position: Position, tap: int, i: Any, old: Any, new: Any) -> Any:
    """Return the position of a pixel near a new one: 0 is the one below, 1 the one above."""
    place = tirx.floor(position(i, old, new)).astype("int64") + tap
    return tirx.max(tirx.min(place, old - 1), tirx.const(0, "int64"))


def _weight(position: Position, tap: int, i: Any, old: Any, new: Any) -> Any:
    """Return the weight of a tap by PyTorch's cubic polynomials."""
    place, a, one = position(i, old, new), tirx.const(CUBIC, "float32"), tirx.const(1, "float32")
    share = place - tirx.floor(place)
    x = tirx.abs(share - tirx.const(tap, "float32"))
    if tap in (0, 1):
        return ((a + 2 * one) * x - (a + 3 * one)) * x * x + one
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def _float(value: Any) -> Any:
    return value.astype("float32")
