# SPDX-License-Identifier: Apache-2.0
"""Errors of a contender's results against the reference's, and the inputs for measuring them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Arrays = Sequence[np.ndarray]


def draws(inputs: Arrays, count: int) -> list[list[np.ndarray]]:
    """Return several draws of a model's inputs: these first, then their numbers in another order, tensor by tensor.

    So ranges, masks of ones and other properties of the inputs remain.
    """
    found = [list(inputs)]
    for draw in range(1, count):
        random = np.random.default_rng(draw)
        found.append([random.permutation(x.reshape(-1)).reshape(x.shape) for x in inputs])
    return found


def mean_error(outputs: Sequence[Arrays], exact: Sequence[Arrays]) -> float:
    """Return the root of the mean square of the relative errors of several draws.

    The error of one draw is that of a single element. Of two contenders with equal arithmetic either may have twice the
    other's.
    """
    if len(outputs) != len(exact):
        return float("inf")
    found = [relative_error(got, want) for got, want in zip(outputs, exact)]
    return float(np.sqrt(np.mean(np.square(found))))


def root_mean_square(outputs: Arrays, exact: Arrays) -> float:
    """Return the root mean square of the elements' differences, each over the greatest value of its tensor.

    The error is infinite if numbers or shapes of tensors differ, or if a difference is not finite. It varies less
    between runs than the greatest error does.
    """
    if [x.shape for x in outputs] != [x.shape for x in exact]:
        return float("inf")
    with np.errstate(invalid="ignore"):
        pairs = [(got.astype(np.float64), want.astype(np.float64)) for got, want in zip(outputs, exact)]
        parts = [((got - want) / (np.abs(want).max() or 1.0)).ravel() for got, want in pairs if want.size]
    found = float(np.sqrt(np.mean(np.square(np.concatenate(parts))))) if parts else 0.0
    return found if np.isfinite(found) else float("inf")


def relative_error(outputs: Arrays, exact: Arrays) -> float:
    """Return the greatest difference of an element over the greatest value of its tensor, the worst of all tensors.

    The error is infinite if numbers or shapes of tensors differ, or if a difference is not finite.
    """
    if [x.shape for x in outputs] != [x.shape for x in exact]:
        return float("inf")
    worst = 0.0
    for got, want in zip(outputs, exact):
        if not want.size:
            continue
        reference = want.astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = float(np.abs(got.astype(np.float64) - reference).max())
        if not np.isfinite(difference):
            return float("inf")
        worst = max(worst, difference / (float(np.abs(reference).max()) or 1.0))
    return worst
