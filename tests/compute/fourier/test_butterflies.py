# SPDX-License-Identifier: Apache-2.0
"""Butterflies of all radices against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_stitch.compute.fourier.butterflies import butterfly
from tvm_stitch.cost.choices import Choices


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("radix", range(1, Choices().fourier_largest_radix + 1))
def test_a_butterfly_is_a_transform(radix: int, sign: int) -> None:
    draw = np.random.default_rng(radix)
    x = draw.standard_normal(radix) + 1j * draw.standard_normal(radix)
    values = [(float(each.real), float(each.imag)) for each in x]
    found = butterfly(values, sign, lambda value: value, float)
    want = np.fft.fft(x) if sign < 0 else np.fft.ifft(x) * radix
    np.testing.assert_allclose([complex(*each) for each in found], want, rtol=1e-13, atol=1e-13)


def test_a_butterfly_of_sixteen_has_few_multiplications() -> None:
    made = []

    class Value:
        def __add__(self, other: object) -> Value:
            return Value()

        __sub__ = __add__

        def __mul__(self, other: object) -> Value:
            made.append(other)
            return Value()

    butterfly([(Value(), Value()) for _ in range(16)], -1, lambda value: value, float)
    assert sum(abs(each) != 1.0 for each in made) <= 4 * 4 + 4 * 2  # four roots of order 16, four of order 8
