# SPDX-License-Identifier: Apache-2.0
"""TVM's suppression of overlapping boxes, with scores as it takes them: positive ones only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax, topi
from tvm.relax import op as R

THRESHOLD = 0.5
"""A threshold below the scores of :func:`positive_scores`, except for boxes that are left out."""

LOWEST = -3.0e38
"""A score below those of all boxes."""


def positive_scores(
    emit: Callable[[relax.Expr], relax.Var], scores: relax.Expr, count: int, threshold: float
) -> relax.Expr:
    """Return scores from 1 to ``count`` in the same order. TVM neither suppresses nor keeps boxes of negative scores.

    Args:
        emit: binds an expression.
        scores: scores ``[batch, classes, count]`` of float32.
        count: the number of boxes, below 2^24.
        threshold: boxes that are not above it get 0.
    """
    order = emit(R.argsort(scores, axis=-1, descending=True, dtype="int32"))
    rank = emit(R.argsort(order, axis=-1, descending=False, dtype="int32"))
    points = emit(R.subtract(relax.const(float(count), "float32"), emit(R.astype(rank, "float32"))))
    above = emit(R.greater(scores, relax.const(threshold, "float32")))
    return emit(R.where(above, points, relax.const(0.0, "float32")))


def selected_boxes(
    builder: relax.BlockBuilder,
    boxes: relax.Expr,
    scores: relax.Expr,
    most: int,
    overlap: float,
    threshold: float = LOWEST,
    column: int = 0,
) -> relax.Var:
    """Return the columns from ``column`` on of the selected ``(batch, class, box)``, by decreasing score.

    Args:
        builder: binds expressions.
        boxes: corners ``[batch, count, 4]`` of float32. The count is known.
        scores: scores ``[batch, classes, count]`` of float32.
        most: the most boxes of a class, at most the count.
        overlap: a box is suppressed if it overlaps a selected one by more.
        threshold: boxes whose scores are not above it are left out.
        column: the first column.
    """
    emit = builder.emit
    points = positive_scores(emit, scores, int(boxes.ty.shape[1]), threshold)
    above = float(
        np.nextafter(np.float32(overlap), np.float32(np.inf))
    )  # TVM suppresses boxes at the overlap too
    selected = emit(
        builder.call_te(
            topi.vision.all_class_non_max_suppression,
            boxes,
            points,
            most,
            above,
            relax.const(THRESHOLD, "float32"),
            "onnx",
        )
    )
    rows, total = (emit(relax.TupleGetItem(selected, i)) for i in range(2))
    total = emit(R.astype(R.reshape(total, relax.ShapeExpr([1])), "int64"))
    end = emit(R.concat([total, relax.const([3], "int64")], axis=0))
    begin, steps = relax.const([0, column], "int64"), relax.const([1, 1], "int64")
    return emit(R.dynamic_strided_slice(rows, begin, end, steps))
