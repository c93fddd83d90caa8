# SPDX-License-Identifier: Apache-2.0
"""Regions of images: pooling, sampling, and suppression of overlapping boxes."""

from __future__ import annotations

from tvm import relax, tirx

from ....relax.legalize.aligned_regions import Bins, aligned_regions
from ....relax.legalize.box_scores import LOWEST, selected_boxes
from .node import ANY, Conversion, Node, Unsupported, scalar, shape_of


def _roi_align(node: Node) -> relax.Expr:
    given = node.attributes
    node.static_shape(0)
    half = given.get("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    how = Bins(
        (given["output_height"], given["output_width"]),
        given["sampling_ratio"],
        given["spatial_scale"],
        half and node.opset >= 16,
        given["mode"] == "max",
    )
    return node.bb.call_te(aligned_regions(how), node.tensor(0), node.tensor(1), node.tensor(2))


def _non_max_suppression(node: Node) -> relax.Expr:
    """Select boxes by TVM's operator. A greater count of boxes than there are means all of them."""
    boxes, scores = node.tensor(0), node.tensor(1)
    count = shape_of(boxes)[1]
    most = int(node.known(2, "max_output_boxes_per_class").reshape(-1)[0]) if node.has(2) else 0
    iou = float(node.known(3, "iou_threshold").reshape(-1)[0]) if node.has(3) else 0.0
    least = float(node.known(4, "score_threshold").reshape(-1)[0]) if node.has(4) else LOWEST
    if most <= 0:
        return relax.op.full(relax.ShapeExpr([0, 3]), scalar(0, "int64"), "int64")
    if not isinstance(count, int):
        raise Unsupported(
            f"it selects from the symbolic number {count} of boxes; fix it (shape_dict, or --shape)"
        )
    most = min(most, count)
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
    chosen = selected_boxes(node.bb, boxes, scores, most, iou, least)
    return node.bb.match_cast(chosen, relax.TensorType([tirx.Var("selected", "int64"), 3], "int64"))


CONVERSIONS = {
    ("", "RoiAlign"): Conversion(
        _roi_align,
        dict.fromkeys(("output_height", "output_width", "sampling_ratio", "spatial_scale"), ANY)
        | {"mode": ("avg", "max"), "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")},
    ),
    ("", "NonMaxSuppression"): Conversion(_non_max_suppression, {"center_point_box": ANY}),
}
