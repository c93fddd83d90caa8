# SPDX-License-Identifier: Apache-2.0
"""PyTorch's resizing of images (``interpolate``) with symbolic sizes, at PyTorch's positions."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import fx
from tvm import tirx

from ..symbolic import resized_axes
from ..symbolic.resized_axes import Position, number
from ..symbolic.scaled import Inexact, scaled
from .core import Converter, argument
from .importing.unsupported import Unsupported
from .operators.values import type_name

CUBIC = -0.75
"""PyTorch's coefficient of cubic interpolation."""


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
    x, builder = importer.env[node.args[0]], importer.block_builder
    for axis, new, factor in _axes(node, importer, 2):
        x = resized_axes.nearest(builder, x, axis, new, _pixel(factor, 0.5 if middle else 0.0))
    return x


def linear(node: Any, importer: Any) -> Any:
    """(input, size or None, align_corners, factors or None)."""
    x, builder = importer.env[node.args[0]], importer.block_builder
    if type_name(x) == "uint8":
        raise Unsupported.at(
            node, "images of bytes are resized at fixed sizes only; cast the image to float32"
        )
    for axis, new, factor in _axes(node, importer, 3):
        x = resized_axes.linear(builder, x, axis, new, _position(node, factor))
    return x


def cubic(node: Any, importer: Any) -> Any:
    """(input, size or None, align_corners, factors or None)."""
    x, builder = importer.env[node.args[0]], importer.block_builder
    for axis, new, factor in _axes(node, importer, 3):
        x = resized_axes.cubic(builder, x, axis, new, _position(node, factor), CUBIC)
    return x


def _axes(node: Any, importer: Any, at: int) -> list[tuple[int, Any, float | None]]:
    """Return the axes of an image: the axis, the extent of the result, and the factor if one is given.

    Args:
        at: number of the argument that has the factors.
    """
    before = list(importer.env[node.args[0]].ty.shape)[2:]
    sizes, factors = argument(node, 1, "output_size", None), argument(node, at, "scale_factors", None)
    if sizes is None:
        try:
            sizes = [scaled(old, float(factor)) for old, factor in zip(before, factors)]
        except Inexact as error:
            raise Unsupported.at(node, str(error)) from error
    sizes = [importer.env[size] if isinstance(size, fx.Node) else size for size in sizes]
    factors = [float(factor) for factor in factors] if factors else [None] * len(before)
    return list(zip(range(2, 2 + len(before)), sizes, factors, strict=True))


def _position(node: Any, factor: float | None) -> Position:
    return _between_corners if bool(argument(node, 2, "align_corners", False)) else _middle(factor)


def _step(factor: float | None, old: Any, new: Any) -> Any:
    """Return the distance between new pixels, in old ones, as PyTorch computes it."""
    return number(1.0 / factor) if factor else number(old) / number(new)


def _pixel(factor: float | None, offset: float) -> Position:
    return lambda i, old, new: tirx.floor((number(i) + number(offset)) * _step(factor, old, new))


def _middle(factor: float | None) -> Position:
    return lambda i, old, new: (number(i) + number(0.5)) * _step(factor, old, new) - number(0.5)


def _between_corners(i: Any, old: Any, new: Any) -> Any:
    return number(i) * (number(old - 1) / number(tirx.max(new - 1, tirx.const(1, "int64"))))
