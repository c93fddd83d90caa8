# SPDX-License-Identifier: Apache-2.0
"""torchvision's operators on regions: pooling with a run-time number of samples, and suppression of boxes."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.relax import op as R

from ....relax.legalize.aligned_regions import Bins, aligned_regions
from ....relax.legalize.box_scores import selected_boxes
from ..core import Converter, argument
from ..importing.unsupported import Unsupported
from .values import cast, type_name


def region_converters() -> dict[str, Converter]:
    """Return the converters for operators of torchvision, by their names."""
    return {"torchvision::nms.default": _suppressed, "torchvision::roi_align.default": _pooled}


def _pooled(node: Any, importer: Any) -> Any:
    """(images, regions <K, 5>, scale, rows, columns, samples, aligned) -> the means of samples in each bin.

    A region is the number of its image and two corners.
    """
    emit = importer.block_builder.emit
    x, regions = (importer.env[arg] for arg in node.args[:2])
    dtype = type_name(x)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    x, regions = cast(x, wide, importer), cast(regions, wide, importer)
    batches = emit(R.squeeze(emit(R.strided_slice(regions, [1], [0], [1])), [1]))
    corners = emit(R.strided_slice(regions, [1], [1], [5]))
    how = Bins(
        (int(argument(node, 3, "pooled_height", 1)), int(argument(node, 4, "pooled_width", 1))),
        int(argument(node, 5, "sampling_ratio", -1)),
        float(argument(node, 2, "spatial_scale", 1.0)),
        bool(argument(node, 6, "aligned", False)),
    )
    batches = emit(R.astype(batches, "int64"))
    return cast(
        emit(importer.block_builder.call_te(aligned_regions(how), x, corners, batches)), dtype, importer
    )


def _suppressed(node: Any, importer: Any) -> Any:
    """(boxes <N, 4>, scores <N>, threshold) -> the numbers of boxes that are kept, by decreasing score."""
    builder = importer.block_builder
    emit = builder.emit
    boxes, scores = (cast(importer.env[arg], "float32", importer) for arg in node.args[:2])
    count = boxes.ty.shape[0]
    if not isinstance(count, tirx.IntImm):
        raise Unsupported.at(
            node, f"it selects from the symbolic number {count} of boxes; export it with a fixed one"
        )
    boxes = emit(R.reshape(boxes, [1, count, 4]))
    scores = emit(R.reshape(scores, [1, 1, count]))
    overlap = float(argument(node, 2, "iou_threshold", 0.5))
    chosen = selected_boxes(builder, boxes, scores, int(count), overlap, column=2)
    size = tirx.Var(str(node.meta["val"].shape[0]), "int64")
    chosen = builder.match_cast(chosen, relax.TensorType([size, 1], "int64"))
    return emit(R.reshape(chosen, [size]))
