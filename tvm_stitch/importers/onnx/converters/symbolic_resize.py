# SPDX-License-Identifier: Apache-2.0
"""Resize with symbolic sizes, at ONNX's positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import relax, tirx

from ....graph.extent import same
from ...symbolic import resized_axes
from ...symbolic.resized_axes import Position, number
from ...symbolic.scaled import Inexact, scaled
from .node import Node, Unsupported

_ROUNDED: dict[str, Callable[[Any], Any]] = {
    "floor": tirx.floor,
    "ceil": tirx.ceil,
    "round_prefer_ceil": lambda at: tirx.floor(at + number(0.5)),
    "round_prefer_floor": lambda at: tirx.ceil(at - number(0.5)),
}
"""The element that is nearest to a position, by the attribute ``nearest_mode``."""


def resized_symbolically(node: Node, numbers: list[int], sizes: list[Any], scales: list[float]) -> relax.Expr:
    """Return a tensor resized along axes, of which one or more are symbolic.

    Args:
        node: the node.
        numbers: numbers of the axes.
        sizes: their new extents, or nothing if there are scales.
        scales: their scales, or nothing.

    Raises:
        Unsupported: for an option that needs fixed sizes.
    """
    given, dims, builder = node.attributes, node.shape(0), node.bb
    coordinates = str(given.get("coordinate_transformation_mode", "asymmetric"))
    if coordinates == "tf_crop_and_resize" or given.get("antialias") or given.get("exclude_outside"):
        raise Unsupported(
            "a region, antialias or exclude_outside needs fixed dimensions (shape_dict, or --shape)"
        )
    if given.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Unsupported("it keeps the ratio of symbolic dimensions; fix them (shape_dict, or --shape)")
    x, dtype, mode = node.tensor(0), node.dtype(0), given["mode"]
    if mode == "nearest" and coordinates == "half_pixel_symmetric":  # rounding decides between two elements
        raise Unsupported("nearest with half_pixel_symmetric needs fixed dimensions (shape_dict, or --shape)")
    if mode != "nearest" and not dtype.startswith(("float", "bfloat")):
        raise Unsupported(f"{mode} of {dtype} needs fixed dimensions (shape_dict, or --shape), or floats")
    wide = dtype if mode == "nearest" or dtype in ("float32", "float64") else "float32"
    y = x if wide == dtype else node.emit(relax.op.astype(x, wide))
    for at, axis in enumerate(numbers):
        scale = scales[at] if scales else None
        try:
            new = scaled(dims[axis], scales[at]) if scales else sizes[at]
        except Inexact as error:
            raise Unsupported(str(error)) from error
        if scale == 1.0 or (scale is None and same(new, dims[axis])):
            continue
        position = partial(_position, coordinates, scale)
        if mode == "nearest":
            place = _nearest(_ROUNDED[str(given.get("nearest_mode", "floor"))], position)
            y = resized_axes.nearest(builder, y, axis, new, place)
        elif mode == "linear":
            y = resized_axes.linear(builder, y, axis, new, position)
        else:
            y = resized_axes.cubic(builder, y, axis, new, position, float(given.get("cubic_coeff_a", -0.75)))
    return y if wide == dtype else node.emit(relax.op.astype(y, dtype))


def _nearest(rounded: Callable[[Any], Any], position: Position) -> Position:
    return lambda i, old, new: rounded(position(i, old, new))


def _position(mode: str, scale: float | None, i: Any, old: Any, new: Any) -> Any:
    """Return the position of a new element by the attribute ``coordinate_transformation_mode``."""
    ratio = number(scale) if scale else number(new) / number(old)
    half, one = number(0.5), tirx.const(1, "int64")
    if mode == "align_corners":
        return number(i) * number(old - 1) / number(tirx.max(new - 1, one))
    if mode == "asymmetric":
        return number(i) / ratio
    if mode == "tf_half_pixel_for_nn":
        return (number(i) + half) / ratio
    if mode == "half_pixel_symmetric":
        offset = number(old) * half * (number(1) - number(new) / (ratio * number(old)))
        return offset + (number(i) + half) / ratio - half
    middle = (number(i) + half) / ratio - half
    return tirx.Select(new > 1, middle, number(0)) if mode == "pytorch_half_pixel" else middle
