# SPDX-License-Identifier: Apache-2.0
"""Compare outputs with the oracle's bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .bounded import Bounded, Rules


def violations(outputs: Sequence[np.ndarray], expected: Sequence[Bounded], rules: Rules) -> list[str]:
    """Describe the errors, one line for each output."""
    if len(outputs) != len(expected):
        return [f"{len(outputs)} outputs instead of {len(expected)}"]
    wrong = []
    for index, (got, value) in enumerate(zip(outputs, expected)):
        problem = _violation(got, value)
        if problem:
            wrong.append(f"output {index} ({value.dtype}{list(value.shape)}): {problem}")
    return wrong


def _violation(got: np.ndarray, value: Bounded) -> str | None:
    if tuple(got.shape) != tuple(value.shape):
        return f"has shape {list(got.shape)}"
    if str(got.dtype) != value.dtype:
        return f"has dtype {got.dtype}"
    known = ~value.unknown
    if not value.is_float:
        bad = known & (got != value.data)
    else:
        wide = got.astype("float64")
        with np.errstate(all="ignore"):
            same = (np.isnan(wide) & np.isnan(value.data)) | (wide == value.data)
            bad = known & ~same & ~(np.abs(wide - value.data) <= 2 * value.error)
    if not bad.any():
        return None
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    what = f"{int(bad.sum())} of {bad.size} elements wrong; at {list(first)} it is {got[first]}, "
    what += f"not {value.data[first]}"
    return what + (f" (within {2 * value.error[first]:.3g})" if value.is_float else "")


def share_judged(expected: Sequence[Bounded]) -> tuple[int, int]:
    """Count the elements that are judged, and all elements."""
    known = sum(int((~v.unknown).sum()) for v in expected)
    return known, sum(v.data.size for v in expected)
