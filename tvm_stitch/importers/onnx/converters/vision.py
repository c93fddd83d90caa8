# SPDX-License-Identifier: Apache-2.0
"""Regions of images: pooling, sampling, and suppression of overlapping boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from .node import ANY, Conversion, Node, Unsupported, scalar, shape_of

MOST_SAMPLES = 4096
"""Samples along a side of a bin, so that regions that are not finite end."""


def _roi_align(node: Node) -> relax.Expr:
    """Pool regions by bilinear samples, as ONNX Runtime does: ``max`` takes the greatest weighted corner.

    Without a number of samples, a kernel computes it for each region.
    """
    given, dtype = node.attributes, node.dtype(0)
    _, channels, height, width = node.static_shape(0)
    regions = node.shape(1)[0]
    half = (
        given.get("coordinate_transformation_mode", "output_half_pixel") == "half_pixel" and node.opset >= 16
    )
    ratio, scale = given["sampling_ratio"], given["spatial_scale"]
    bins = given["output_height"], given["output_width"]

    def aligned(x: te.Tensor, rois: te.Tensor, batches: te.Tensor) -> te.Tensor:
        offset = tirx.const(0.5 if half else 0.0, dtype)
        one = tirx.const(1.0, dtype)

        def box(r: Any, side: int) -> tuple[Any, Any]:
            start = rois(r, 1 - side) * tirx.const(scale, dtype) - offset
            end = rois(r, 3 - side) * tirx.const(scale, dtype) - offset
            size = end - start
            return start, size if half else tirx.max(size, one)

        def samples(r: Any, side: int) -> Any:
            """Return the samples along a side of a bin: as many as pixels, if their number is not fixed."""
            if ratio > 0:
                return tirx.const(ratio, "int64")
            pixels = tirx.ceil(box(r, side)[1] / tirx.const(bins[side], dtype))
            most = tirx.const(MOST_SAMPLES, dtype)
            return tirx.Cast("int64", tirx.max(tirx.min(pixels, most), tirx.const(0.0, dtype)))

        def axes(r: Any) -> list[Any]:
            return [te.reduce_axis((0, samples(r, side)), name) for side, name in ((0, "i"), (1, "j"))]

        def sample(r: Any, c: Any, p: Any, q: Any, i: Any, j: Any) -> list[Any]:
            spots = []
            for side, at, tap in ((0, p, i), (1, q, j)):
                start, size = box(r, side)
                step = size / tirx.const(bins[side], dtype)
                spots.append(
                    start
                    + tirx.Cast(dtype, at) * step
                    + (tirx.Cast(dtype, tap) + tirx.const(0.5, dtype))
                    * step
                    / tirx.Cast(dtype, samples(r, side))
                )
            inside = tirx.all(spots[0] >= -1.0, spots[0] <= height, spots[1] >= -1.0, spots[1] <= width)
            sides = []
            for spot, extent in zip(spots, (height, width)):
                spot = tirx.max(spot, tirx.const(0.0, dtype))
                low = tirx.Cast("int64", tirx.floor(spot))
                last = low >= extent - 1
                low = tirx.if_then_else(last, tirx.const(extent - 1, "int64"), low)
                part = tirx.if_then_else(last, tirx.const(0.0, dtype), spot - tirx.Cast(dtype, low))
                high = tirx.if_then_else(last, low, low + 1)
                sides.append((low, high, part))
            (y0, y1, dy), (x0, x1, dx) = sides
            b = tirx.Cast("int64", batches(r))
            corners = [
                (one - dy) * (one - dx) * x(b, c, y0, x0),
                (one - dy) * dx * x(b, c, y0, x1),
                dy * (one - dx) * x(b, c, y1, x0),
                dy * dx * x(b, c, y1, x1),
            ]
            return [tirx.if_then_else(inside, corner, tirx.const(0.0, dtype)) for corner in corners]

        def pooled(reduce: Any, of: Any, name: str) -> te.Tensor:
            def over(r: Any, c: Any, p: Any, q: Any) -> Any:
                at = axes(r)
                return reduce(of(sample(r, c, p, q, *at)), axis=at)

            return te.compute((regions, channels, *bins), over, name=name)

        def counted(r: Any) -> Any:
            return samples(r, 0) * samples(r, 1)

        nothing = tirx.const(0.0, dtype)
        if given["mode"] == "max":
            greatest = pooled(te.max, _greatest, "roi_max")
            if ratio > 0:
                return greatest
            return te.compute(
                greatest.shape,
                lambda r, *k: tirx.Select(counted(r) > 0, greatest(r, *k), nothing),
                name="roi_align_max",
            )
        total = pooled(te.sum, sum, "roi_sum")
        one_or_more = tirx.const(1, "int64")
        return te.compute(
            total.shape,
            lambda r, *k: total(r, *k) / tirx.Cast(dtype, tirx.max(counted(r), one_or_more)),
            name="roi_align",
        )

    return node.bb.call_te(aligned, node.tensor(0), node.tensor(1), node.tensor(2))


def _greatest(values: list[Any]) -> Any:
    result = values[0]
    for each in values[1:]:
        result = tirx.max(result, each)
    return result


def _non_max_suppression(node: Node) -> relax.Expr:
    """Select boxes by TVM's operator. A greater count of boxes than there are means all of them."""
    boxes, scores = node.tensor(0), node.tensor(1)
    count = shape_of(boxes)[1]
    most = int(node.known(2, "max_output_boxes_per_class").reshape(-1)[0]) if node.has(2) else 0
    iou = float(node.known(3, "iou_threshold").reshape(-1)[0]) if node.has(3) else 0.0
    least = float(node.known(4, "score_threshold").reshape(-1)[0]) if node.has(4) else -3.0e38
    if most <= 0:
        return relax.op.full(relax.ShapeExpr([0, 3]), scalar(0, "int64"), "int64")
    if not isinstance(count, int):
        raise Unsupported(
            f"it selects from the symbolic number {count} of boxes; fix it (shape_dict, or --shape)"
        )
    most = min(most, count)
    iou = float(
        np.nextafter(np.float32(iou), np.float32(np.inf))
    )  # TVM suppresses boxes at the threshold too
    if node.attributes["center_point_box"]:
        x, y, w, h = (node.emit(relax.op.strided_slice(boxes, [2], [i], [i + 1])) for i in range(4))
        two = scalar(2.0, node.dtype(0))
        w, h = (node.emit(relax.op.divide(side, two)) for side in (w, h))
        corners = [relax.op.subtract(y, h), relax.op.subtract(x, w), relax.op.add(y, h), relax.op.add(x, w)]
    else:
        a, b, c, d = (node.emit(relax.op.strided_slice(boxes, [2], [i], [i + 1])) for i in range(4))
        corners = [
            relax.op.minimum(a, c),
            relax.op.minimum(b, d),
            relax.op.maximum(a, c),
            relax.op.maximum(b, d),
        ]
    boxes = node.emit(relax.op.concat([node.emit(each) for each in corners], axis=2))
    found = node.emit(
        node.bb.call_te(
            topi.vision.all_class_non_max_suppression,
            boxes,
            scores,
            most,
            scalar(iou, "float32"),
            scalar(least, "float32"),
            "onnx",
        )
    )
    rows, total = (node.emit(relax.TupleGetItem(found, i)) for i in range(2))
    total = node.emit(relax.op.astype(relax.op.reshape(total, relax.ShapeExpr([1])), "int64"))
    end = node.emit(relax.op.concat([total, relax.const([3], "int64")], axis=0))
    begin, steps = relax.const([0, 0], "int64"), relax.const([1, 1], "int64")
    chosen = node.emit(relax.op.dynamic_strided_slice(rows, begin, end, steps))
    return node.bb.match_cast(chosen, relax.TensorType([tirx.Var("selected", "int64"), 3], "int64"))


CONVERSIONS = {
    ("", "RoiAlign"): Conversion(
        _roi_align,
        dict.fromkeys(("output_height", "output_width", "sampling_ratio", "spatial_scale"), ANY)
        | {"mode": ("avg", "max"), "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")},
    ),
    ("", "NonMaxSuppression"): Conversion(_non_max_suppression, {"center_point_box": ANY}),
}
