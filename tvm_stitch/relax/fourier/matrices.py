# SPDX-License-Identifier: Apache-2.0
"""Constant matrices of Fourier transforms, computed in float64.

A row of complex numbers is a row of real numbers, all real parts in front of all imaginary parts. So one real matmul
transforms it. Angles are reduced exactly, in integers, before their sine is computed.
"""

from __future__ import annotations

import numpy as np


def roots(exponents: np.ndarray, order: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Return real and imaginary parts of ``exp(sign * 2 pi i * exponents / order)`` in float64.

    Args:
        exponents: integers of any shape.
        order: the number of roots of one.
        sign: -1 for a transform, 1 for its inverse.
    """
    exponents = exponents.astype("int64") % order
    angle = 2 * np.pi * exponents / order
    # Exact zeros keep the sums of real signals real, whose angle is 0 or pi.
    cos = np.where(4 * exponents % (2 * order) == order, 0.0, np.cos(angle))
    return cos, np.where(2 * exponents % order == 0, 0.0, sign * np.sin(angle))


def of_complex(length: int, sign: int, scale: float) -> np.ndarray:
    """Return the matrix ``[2 * length, 2 * length]`` that transforms rows of complex numbers."""
    cos, sin = roots(np.outer(np.arange(length), np.arange(length)), length, sign)
    return np.block([[cos, sin], [-sin, cos]]) * scale


def of_real(length: int, sign: int, scale: float) -> np.ndarray:
    """Return the matrix ``[length, 2 * (length // 2 + 1)]`` from rows of real numbers to the half of their spectrum."""
    cos, sin = roots(np.outer(np.arange(length), np.arange(length // 2 + 1)), length, sign)
    return np.concatenate([cos, sin], 1) * scale


def to_real(length: int, sign: int, scale: float) -> np.ndarray:
    """Return the matrix ``[2 * (length // 2 + 1), length]`` from half a spectrum to real numbers.

    Imaginary parts of the first number, and of the middle one of an even length, do not count.
    """
    half = np.arange(length // 2 + 1)
    cos, sin = roots(np.outer(half, np.arange(length)), length, sign)
    alone = (half == 0) | (2 * half == length)
    weight = np.where(alone, 1.0, 2.0)[:, None] * scale
    return np.concatenate([cos * weight, np.where(alone[:, None], 0.0, -sin) * weight])


def chirp(length: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``exp(sign * pi i * j * j / length)`` for each position j."""
    return roots(np.arange(length, dtype="int64") ** 2, 2 * length, sign)
