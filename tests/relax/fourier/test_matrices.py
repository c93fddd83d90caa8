# SPDX-License-Identifier: Apache-2.0
"""The constant matrices of transforms, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_stitch.relax.fourier import matrices

LENGTHS = [1, 2, 5, 8]


def _row(length: int) -> np.ndarray:
    draw = np.random.default_rng(length)
    return draw.standard_normal(length) + 1j * draw.standard_normal(length)


def _joined(row: np.ndarray) -> np.ndarray:
    return np.concatenate([row.real, row.imag])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_of_complex(length: int, sign: int) -> None:
    x = _row(length)
    want = np.fft.fft(x) if sign == -1 else np.fft.ifft(x) * length
    found = _joined(x) @ matrices.of_complex(length, sign, 0.5)
    np.testing.assert_allclose(found, _joined(want) * 0.5, atol=1e-13)


@pytest.mark.parametrize("length", LENGTHS)
def test_of_real(length: int) -> None:
    x = _row(length).real
    found = x @ matrices.of_real(length, -1, 2.0)
    np.testing.assert_allclose(found, _joined(np.fft.rfft(x)) * 2, atol=1e-13)


@pytest.mark.parametrize("length", LENGTHS)
def test_to_real_ignores_imaginary_ends(length: int) -> None:
    x = _row(length // 2 + 1)
    found = _joined(x) @ matrices.to_real(length, 1, 1 / length)
    np.testing.assert_allclose(found, np.fft.irfft(x, length), atol=1e-13)
    np.testing.assert_array_equal(matrices.to_real(length, 1, 1.0)[length // 2 + 1], 0)


def test_roots_of_large_exponents_are_exact_on_the_axes() -> None:
    cos, sin = matrices.roots(np.arange(8) * 2 + 16 * 10**9, 16, -1)
    np.testing.assert_array_equal(cos[[0, 2, 4, 6]], [1, 0, -1, 0])
    np.testing.assert_array_equal(sin[[0, 2, 4, 6]], [0, -1, 0, 1])


def test_chirp() -> None:
    cos, sin = matrices.chirp(5, -1)
    np.testing.assert_allclose(cos + 1j * sin, np.exp(-1j * np.pi * np.arange(5) ** 2 / 5))
