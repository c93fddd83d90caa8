# SPDX-License-Identifier: Apache-2.0
"""The description of a Fourier transform, and the radices of its stages."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import cache
from typing import Literal

from ...cost.choices import Choices


@dataclass(frozen=True)
class Transform:
    """A transform of rows: ``scale * sum_j x[j] * exp(sign * 2 pi i * j * k / length)`` for each k.

    Attributes:
        kind: "complex" transforms complex numbers. "half" transforms real numbers to the first ``length // 2 + 1``
            numbers of their spectrum. "real" transforms these numbers to real ones.
        length: the number of elements of a row, of the real ones if ``kind`` is not "complex".
        sign: -1, or 1 for the inverse.
        scale: a factor of the result.
    """

    kind: Literal["complex", "half", "real"]
    length: int
    sign: int
    scale: float = 1.0

    @property
    def half(self) -> int:
        """Return the number of elements of half a spectrum."""
        return self.length // 2 + 1

    @property
    def complex_length(self) -> int:
        """Return the length of the complex transform of the kernel: two real numbers become a complex one."""
        return self.length if self.kind == "complex" else self.length // 2

    @property
    def is_smooth(self) -> bool:
        """Return whether the length has no prime factor that is too large for the kernel."""
        choices = Choices()
        return _largest_prime(self.length) <= choices.fourier_largest_prime

    def to_text(self) -> str:
        """Return the description as text."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> Transform:
        """Return the description that :meth:`to_text` has written."""
        return Transform(**json.loads(text))

    def suits_kernel(self, lanes: int) -> bool:
        """Return whether the kernel computes the transform with vectors of ``lanes`` elements.

        Each stage of the kernel has a vector of butterflies at least. So the length has factors that leave one.
        """
        if self.kind != "complex" and self.length % 2:
            return False
        return bool(radices_of(self.complex_length, lanes))


def radices_of(length: int, lanes: int) -> tuple[int, ...]:
    """Return the radices of the stages of a transform, in their order. They are empty if the kernel cannot compute it.

    The first stages have powers of two, so that later ones store whole vectors.

    Args:
        length: the number of complex elements.
        lanes: the elements of a vector.
    """
    if length < 2 * lanes:
        return ()
    choices = Choices()
    radices = _best(length, min(choices.fourier_largest_radix, length // lanes))[1]
    return tuple(sorted(radices, key=lambda radix: (radix & -radix, radix), reverse=True))


@cache
def _best(length: int, most: int) -> tuple[float, tuple[int, ...]]:
    """Return the least cost for each number, and the radices that have it. The cost is infinite if there are none."""
    if length == 1:
        return 0.0, ()
    choices = Choices()
    best: tuple[float, tuple[int, ...]] = (math.inf, ())
    for radix in range(2, most + 1):
        if length % radix == 0 and _largest_prime(radix) <= choices.fourier_largest_prime:
            cost, others = _best(length // radix, most)
            cost += _work(radix) + choices.fourier_pass_cost
            if cost < best[0]:
                best = (cost, (radix, *others))
    return best


def _largest_prime(number: int) -> int:
    largest, factor = 1, 2
    while number > 1:
        while number % factor == 0:
            number, largest = number // factor, factor
        factor += 1
    return largest


def _work(radix: int) -> float:
    """Return the operations of a butterfly for each number, roughly."""
    total, factor = 0.0, 2
    while radix > 1:
        while radix % factor == 0:
            radix //= factor
            total += 2.6 if factor == 2 else 2.0 * factor
        factor += 1
    return total
