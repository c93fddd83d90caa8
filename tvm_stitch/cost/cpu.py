# SPDX-License-Identifier: Apache-2.0
"""Estimated time of elements on a CPU's core."""

from __future__ import annotations

from ..graph.extent import Extent
from .choices import Choices


def assumed_length(columns: Extent, choices: Choices) -> int:
    """Return the columns of a row, or the number that a symbolic row is assumed to have."""
    return columns if isinstance(columns, int) else choices.symbolic_columns


def element_ns(heavy: int, light: int, accesses: int, choices: Choices) -> float:
    """Return the nanoseconds that an element takes a core, by the operators and accesses evaluated for it."""
    return choices.heavy_ns * heavy + choices.light_ns * light + choices.access_ns * accesses
