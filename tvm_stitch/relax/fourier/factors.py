# SPDX-License-Identifier: Apache-2.0
"""Choose the factors of a Fourier transform's length, each of which becomes one matmul."""

from __future__ import annotations

from functools import cache

from ...cost.choices import Choices


def factors_of(length: int) -> tuple[int, ...]:
    """Return the factors of a length whose matmuls cost the least, the largest one first.

    Their product is the length, or the length without its prime factors above ``Choices.fourier_largest_factor``.

    Args:
        length: number of elements of a transform, at least 1.
    """
    return tuple(sorted(_best(_smooth(length))[1], reverse=True))


def power_for(length: int) -> int:
    """Return the length of the cyclic convolution that transforms ``length`` numbers: a power of two."""
    return 1 << (2 * length - 2).bit_length()


def _smooth(length: int) -> int:
    """Return a length without its large prime factors."""
    choices = Choices()
    rest, smooth = length, 1
    for factor in range(2, choices.fourier_largest_factor + 1):
        while rest % factor == 0:
            rest //= factor
            smooth *= factor
    return smooth


@cache
def _best(length: int) -> tuple[int, tuple[int, ...]]:
    """Return the least cost for each number, and the factors that have it."""
    if length == 1:
        return 0, ()
    choices = Choices()
    ways = []
    for factor in range(2, min(length, choices.fourier_largest_factor) + 1):
        if length % factor == 0:
            cost, others = _best(length // factor)
            ways.append((cost + factor + choices.fourier_stage_cost, (factor, *others)))
    return min(ways, key=lambda each: (each[0], len(each[1])))
