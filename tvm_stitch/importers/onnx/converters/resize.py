# SPDX-License-Identifier: Apache-2.0
"""Resize and Upsample: each axis is a matmul with weights of constant sizes, or a gather for the nearest element."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ....graph.extent import same
from .movement.constants import extents
from .node import ANY, Conversion, Node, Unsupported, positive, scalar
from .symbolic_resize import resized_symbolically

_MODES = (
    "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_half_pixel_for_nn"
    " tf_crop_and_resize"
).split()


@dataclass(frozen=True)
class Axis:
    """One resized axis: its number, sizes before and behind, the scale, and the region of interest."""

    number: int
    given: int
    size: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


def _resize(node: Node) -> relax.Expr:
    x, dtype = node.tensor(0), node.dtype(0)
    numbers, sizes, scales = _asked(node)
    if _is_symbolic([node.shape(0)[n] for n in numbers], sizes, scales):
        return resized_symbolically(node, numbers, sizes, scales)
    axes = _axes(node, numbers, sizes, scales)
    given = node.attributes
    mode = given["mode"]
    crop = given.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    axes = [a for a in axes if crop or a.size != a.given or a.scale != 1.0]
    if not axes:
        return relax.op.reshape(x, relax.ShapeExpr(node.shape(0)))
    wide = dtype if dtype in ("float32", "float64") else "float32"
    nearest = mode == "nearest"
    y = x if nearest or wide == dtype else node.emit(relax.op.astype(x, wide))
    outside = None
    for axis in axes:
        # ONNX Runtime has coordinates in float32. Elsewhere than at a tie this is no matter.
        number = np.float32 if nearest else np.float64
        at = coordinates(axis, str(given.get("coordinate_transformation_mode", "asymmetric")), number)
        if nearest:
            indices = np.clip(_nearest(at, given.get("nearest_mode", "floor")), 0, axis.given - 1).astype(
                "int64"
            )
            y = node.emit(relax.op.take(y, relax.const(indices, "int64"), axis=axis.number))
        else:
            y = _weighted(node, y, axis, weights(axis, at, mode, given).astype(wide))
        if crop:
            beyond = (at < 0) | (at > axis.given - 1)
            shape = [axis.size if i == axis.number else 1 for i in range(len(node.shape(0)))]
            beyond = relax.const(beyond.reshape(shape), "bool")
            outside = beyond if outside is None else node.emit(relax.op.logical_or(outside, beyond))
    y = _back(node, y, wide if not nearest else dtype, dtype)
    if outside is not None:
        y = node.emit(relax.op.where(outside, scalar(given["extrapolation_value"], dtype), y))
    return y


def _back(node: Node, y: relax.Expr, wide: str, dtype: str) -> relax.Expr:
    """Return values in the input's type. ONNX Runtime rounds bytes towards zero."""
    if wide == dtype:
        return y
    if dtype in ("int8", "uint8"):
        low, high = (0.0, 255.0) if dtype == "uint8" else (-128.0, 127.0)
        y = relax.op.minimum(relax.op.maximum(y, scalar(low, wide)), scalar(high, wide))
    return node.emit(relax.op.astype(y, dtype))


def _weighted(node: Node, x: relax.Expr, axis: Axis, matrix: np.ndarray) -> relax.Expr:
    """Return a tensor multiplied by a matrix ``[size, given]`` along an axis."""
    rank = len(node.shape(0))
    dtype = str(matrix.dtype)
    if axis.number == rank - 1:
        return node.emit(relax.op.matmul(x, relax.const(np.ascontiguousarray(matrix.T), dtype)))
    if axis.number == rank - 2:
        return node.emit(relax.op.matmul(relax.const(matrix, dtype), x))
    order = [i for i in range(rank) if i != axis.number] + [axis.number]
    turned = node.emit(relax.op.permute_dims(x, order))
    turned = node.emit(relax.op.matmul(turned, relax.const(np.ascontiguousarray(matrix.T), dtype)))
    return node.emit(relax.op.permute_dims(turned, [int(i) for i in np.argsort(order)]))


def _is_symbolic(dims: list[Any], sizes: list[Any], scales: list[float]) -> bool:
    """Return whether an axis that changes has a symbolic extent, before or after."""
    if scales:
        return any(scale != 1.0 and not isinstance(d, int) for d, scale in zip(dims, scales))
    fixed = [isinstance(d, int) and isinstance(e, int) for d, e in zip(dims, sizes)]
    return any(not known and not same(d, e) for known, d, e in zip(fixed, dims, sizes))


def _asked(node: Node) -> tuple[list[int], list[Any], list[float]]:
    """Return the numbers of the axes, and their new extents or their scales."""
    rank, first = len(node.shape(0)), 1 if node.opset < 11 else 2
    numbers = [positive(a, rank) for a in node.attributes.get("axes", range(rank))]
    scales = node.constant(first)
    sizes = extents(node, 3, "sizes") if node.opset >= 11 and node.has(3) else []
    if sizes:
        return numbers, sizes, []
    if node.has(first) and scales is None:
        raise Unsupported("its scales are no constants; make them initializers")
    if scales is None or not scales.size:
        raise Unsupported("it has neither scales nor sizes")
    return numbers, [], [float(s) for s in scales.reshape(-1)]


def _axes(node: Node, numbers: list[int], sizes: list[Any], scales: list[float]) -> list[Axis]:
    """Return the resized axes of fixed sizes, with sizes and scales by the policy for the aspect ratio."""
    given, dims = node.attributes, node.shape(0)
    factors, ends = scales, sizes
    if sizes:
        factors = [e / dims[n] if isinstance(dims[n], int) else 1.0 for n, e in zip(numbers, ends)]
        policy = given.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            if not all(isinstance(dims[n], int) for n in numbers):
                raise Unsupported(
                    "it keeps the ratio of symbolic dimensions; fix them (shape_dict, or --shape)"
                )
            factor = (min if policy == "not_larger" else max)(factors)
            ends = [int(math.floor(factor * dims[n] + 0.5)) for n in numbers]
            factors = [factor] * len(numbers)
    else:
        ends = [
            int(math.floor(np.float32(f) * np.float32(dims[n]))) if isinstance(dims[n], int) else 0
            for n, f in zip(numbers, factors)
        ]
    rois = _rois(node, numbers, len(dims))
    result = []
    for number, end, factor in zip(numbers, ends, factors):
        if isinstance(dims[number], int):
            result.append(Axis(number, dims[number], end, factor, rois.get(number, (0.0, 1.0))))
    _check_whole(node, result, bool(sizes))
    return result


def _check_whole(node: Node, axes: list[Axis], by_sizes: bool) -> None:
    """Refuse scales whose product with a size is no integer where ONNX and ONNX Runtime disagree."""
    mode = node.attributes.get("coordinate_transformation_mode")
    if by_sizes or mode not in ("align_corners", "tf_crop_and_resize"):
        return
    for axis in axes:
        if abs(axis.scale * axis.given - axis.size) > 1e-4:
            raise Unsupported(
                f"{mode} with the scale {axis.scale:g} of {axis.given} elements, whose product is no integer: ONNX's"
                " reference and ONNX Runtime disagree; give it sizes in place of scales"
            )


def _rois(node: Node, numbers: list[int], rank: int) -> dict[int, tuple[float, float]]:
    if node.attributes.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        return {}
    roi = node.known(1, "roi").reshape(-1)
    if roi.size != 2 * len(numbers):
        raise Unsupported(f"its roi has {roi.size} elements, and {2 * len(numbers)} are needed")
    return {n: (float(roi[i]), float(roi[len(numbers) + i])) for i, n in enumerate(numbers)}


def coordinates(axis: Axis, mode: str, number: type[np.floating] = np.float64) -> np.ndarray:
    """Return the positions in the input of all elements of the output, computed in a type of floats."""
    y, half = np.arange(axis.size, dtype=number), number(0.5)
    scale, size, last = number(axis.scale), number(axis.size), number(axis.given - 1)
    if mode == "align_corners":
        return y * 0 if axis.size == 1 else y * last / number(axis.size - 1)
    if mode == "asymmetric":
        return y / scale
    if mode == "tf_crop_and_resize":
        start, end = map(number, axis.roi)
        if axis.size == 1:
            return y * 0 + half * (start + end) * last
        return start * last + y * (end - start) * last / number(axis.size - 1)
    if mode == "pytorch_half_pixel" and axis.size == 1:
        return y * 0
    if mode == "tf_half_pixel_for_nn":
        return (y + half) / scale
    if mode == "half_pixel_symmetric":
        middle = number(axis.given) * half
        return middle * (1 - size / (scale * number(axis.given))) + (y + half) / scale - half
    return (y + half) / scale - half


def _nearest(at: np.ndarray, how: str) -> np.ndarray:
    if how == "floor":
        return np.floor(at)
    if how == "ceil":
        return np.ceil(at)
    if how == "round_prefer_ceil":
        return np.floor(at + 0.5)
    return np.ceil(at - 0.5)


def weights(axis: Axis, at: np.ndarray, mode: str, given: Any) -> np.ndarray:
    """Return the matrix ``[size, given]`` of an interpolation, in float64. Ends are repeated outside."""
    shrunk = min(axis.scale, 1.0) if given.get("antialias") else 1.0
    alpha = given.get("cubic_coeff_a", -0.75)
    reach = (1.0 if mode == "linear" else 2.0) / shrunk
    matrix = np.zeros((axis.size, axis.given))
    for row, position in enumerate(at):
        first, last = int(math.floor(position - reach)), int(math.ceil(position + reach))
        taps = np.arange(first, last + 1)
        distance = np.abs(taps - position) * shrunk
        values = np.clip(1 - distance, 0, None) if mode == "linear" else _cubic(distance, alpha)
        if given.get("exclude_outside"):
            values = np.where((taps < 0) | (taps >= axis.given), 0.0, values)
        if given.get("exclude_outside") or given.get("antialias"):
            values = values / values.sum()
        np.add.at(matrix[row], np.clip(taps, 0, axis.given - 1), values)
    return matrix


def _cubic(distance: np.ndarray, alpha: float) -> np.ndarray:
    """Return Keys's cubic kernel of distances."""
    near = ((alpha + 2) * distance - (alpha + 3)) * distance * distance + 1
    far = ((alpha * distance - 5 * alpha) * distance + 8 * alpha) * distance - 4 * alpha
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _upsample(node: Node) -> relax.Expr:
    """Convert an Upsample, whose positions are ``y / scale``."""
    if node.opset >= 9:
        return _resize(node)
    dims = node.static_shape(0)
    scales = node.attributes.get("scales")
    if scales is None:
        scales = [1.0, 1.0, node.attributes["height_scale"], node.attributes["width_scale"]]
    constant = relax.const(np.array(scales, "float32"))
    del dims
    return _resize(
        Node(node.proto, 9, node.attributes, (node.inputs[0], constant), node.outputs, node.bb, node.importer)
    )


CONVERSIONS = {
    ("", "Resize"): Conversion(
        _resize,
        {
            "mode": ("nearest", "linear", "cubic"),
            "coordinate_transformation_mode": tuple(_MODES),
            "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
            "cubic_coeff_a": ANY,
            "exclude_outside": ANY,
            "extrapolation_value": ANY,
            "antialias": ANY,
            "axes": ANY,
            "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
        },
        since=10,
    ),
    ("", "Upsample"): Conversion(
        _upsample, {"mode": ("nearest", "linear"), "scales": ANY, "height_scale": ANY, "width_scale": ANY}
    ),
}
