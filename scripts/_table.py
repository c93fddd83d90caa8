# SPDX-License-Identifier: Apache-2.0
"""Tables of benchmarks as text, and the mean of their ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence


def aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Lines of cells, the first column on the left, the others on the right."""
    lines = [head, *body]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def geometric_mean(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean of the ratios that are not None, or None if there are none."""
    there = [value for value in values if value]
    return math.exp(sum(map(math.log, there)) / len(there)) if there else None
