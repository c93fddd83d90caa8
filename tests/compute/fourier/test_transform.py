# SPDX-License-Identifier: Apache-2.0
"""Descriptions of Fourier transforms, and the radices of their stages."""

from __future__ import annotations

import math

import pytest

from tvm_stitch.compute.fourier.transform import Transform, radices_of
from tvm_stitch.cost.choices import Choices


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_radices_leave_a_vector_of_butterflies(lanes: int) -> None:
    for length in range(1, 3000):
        radices = radices_of(length, lanes)
        if not radices:
            continue
        assert math.prod(radices) == length
        assert all(radix <= Choices().fourier_largest_radix and length // radix >= lanes for radix in radices)


def test_all_lengths_of_small_primes_have_radices() -> None:
    for length in (32, 60, 64, 1000, 1001, 6561, 12000, 65536, 13**3):
        assert radices_of(length, 4)
    assert not radices_of(17 * 64, 4) and not Transform("complex", 17 * 64, -1).is_smooth
    assert not radices_of(4, 4)
    assert Transform("complex", Choices().fourier_largest_prime * 64, -1).is_smooth


def test_powers_of_two_come_first() -> None:
    for length in (12000, 1536, 3750):
        twos = [radix & -radix for radix in radices_of(length, 16)]
        assert twos == sorted(twos, reverse=True)


def test_real_numbers_of_an_odd_count_are_no_pairs() -> None:
    assert Transform("half", 1000, -1).suits_kernel(4)
    assert not Transform("half", 1001, -1).suits_kernel(4)
    assert Transform("complex", 1001, -1).suits_kernel(4)


def test_text() -> None:
    transform = Transform("real", 1000, 1, 1 / 3)
    assert Transform.from_text(transform.to_text()) == transform
