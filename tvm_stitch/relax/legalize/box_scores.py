# SPDX-License-Identifier: Apache-2.0
"""Scores of boxes for TVM's suppression of overlapping boxes, which takes positive ones only."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax
from tvm.relax import op as R

THRESHOLD = 0.5
"""A threshold below the scores of :func:`positive_scores`, except for boxes that are left out."""


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
