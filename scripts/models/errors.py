# SPDX-License-Identifier: Apache-2.0
"""How far a contender's results are from the reference's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def relative_error(outputs: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> float:
    """The greatest difference of any element, over the greatest value of its tensor; the worst of all tensors.

    Infinite where numbers or shapes of tensors differ, and where a difference is no finite number.
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
