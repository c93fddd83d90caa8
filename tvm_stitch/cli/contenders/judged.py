# SPDX-License-Identifier: Apache-2.0
"""Decide whether a contender's results are right, and take turns in timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...execution.timing import Times

if TYPE_CHECKING:
    import numpy as np

    from .process import Process

MOST_UNEQUAL = 0.01
"""Share of the integers of a result that may differ. Indices of nearly equal values may."""


def fault_of(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: float) -> str:
    """Return how results differ from the expected ones by more than rounding, or "" if they do not.

    Args:
        outputs: results of a contender.
        expected: results of the peer.
        tolerance: the greatest difference of floats, relative to the greatest expected value of a result.
    """
    import numpy as np

    from ...importers.onnx.compare import greatest_error

    if len(outputs) != len(expected):
        return f"{len(outputs)} results in the place of {len(expected)}"
    for number, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        if got.shape != want.shape:
            return f"result {number} has the shape {list(got.shape)} in the place of {list(want.shape)}"
        if want.dtype.kind in "iub":
            unequal = float(np.mean(got != want)) if want.size else 0.0
            if unequal > MOST_UNEQUAL:
                return f"{unequal:.0%} of result {number} differ"
            continue
        known = np.abs(want.astype(np.float64))
        greatest = float(known.max(where=np.isfinite(known), initial=0.0))
        error = greatest_error([got], [want])
        if not error <= tolerance * greatest:
            return f"result {number} differs by {error:.1e}, and its greatest value is {greatest:.1e}"
    return ""


def times_of(contenders: Mapping[str, Process], repeats: int) -> dict[str, Times]:
    """Return the times of all calls of contenders, in ``repeats`` turns each. The order of turns alternates.

    A turn in which threads wait for each other has few calls. So it does not decide the median of all calls.

    Args:
        contenders: the processes, all of them prepared and stopped.
        repeats: the number of turns.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(repeats):
        for name in contenders if number % 2 == 0 else reversed(list(contenders)):
            seconds[name] += contenders[name].turn()
    return {name: Times(tuple(found)) for name, found in seconds.items()}
