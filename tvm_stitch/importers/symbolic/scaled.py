# SPDX-License-Identifier: Apache-2.0
"""Symbolic extents times a factor, which a kernel cannot round."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from tvm import tirx

LARGEST_DENOMINATOR = 1 << 10
"""Factors of larger denominators, such as 1 / 3, give extents that depend on how they are rounded."""


class Inexact(ValueError):
    """A factor whose product with a symbolic extent is rounded. The text says what to give instead."""


def scaled(extent: Any, factor: float) -> Any:
    """Return the largest integer that is not above an extent times a factor.

    Args:
        extent: a number or a symbolic extent.
        factor: a positive number.

    Raises:
        Inexact: if the product depends on how it is rounded.
    """
    exact = Fraction(factor)
    if exact.denominator > LARGEST_DENOMINATOR:
        raise Inexact(f"a symbolic size times {factor:g} is rounded; give the size of the result")
    if isinstance(extent, int):
        return extent * exact.numerator // exact.denominator
    times = extent * exact.numerator if exact.numerator != 1 else extent
    return times if exact.denominator == 1 else tirx.floordiv(times, exact.denominator)
