# SPDX-License-Identifier: Apache-2.0
"""The factors of transforms, each of which becomes a matmul."""

from __future__ import annotations

import math

import pytest

from tvm_stitch.cost.choices import Choices
from tvm_stitch.relax.fourier.factors import factors_of, power_for


@pytest.mark.parametrize(
    ("length", "factors"),
    [
        (1, ()),
        (7, (7,)),
        (64, (8, 8)),
        (97, (97,)),
        (400, (20, 20)),
        (1024, (16, 8, 8)),
        (4096, (16, 16, 16)),
        (65536, (16, 16, 16, 16)),
        (257, ()),
        (2 * 521, (2,)),
    ],
)
def test_factors(length: int, factors: tuple[int, ...]) -> None:
    assert factors_of(length) == factors


def test_factors_divide_the_length_up_to_large_primes() -> None:
    for length in range(1, 2000):
        rest = length // math.prod(factors_of(length))
        assert math.prod(factors_of(length)) * rest == length
        assert rest == 1 or all(rest % prime for prime in range(2, Choices().fourier_largest_factor + 1))


@pytest.mark.parametrize("length", [257, 512, 513, 1021])
def test_a_convolution_has_room_for_all_differences(length: int) -> None:
    power = power_for(length)
    assert power >= 2 * length - 1 > power // 2
    assert power & (power - 1) == 0
