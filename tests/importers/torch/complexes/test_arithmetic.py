# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of complex tensors against PyTorch."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from tests.importers.torch.programs import compare, refusal  # noqa: E402


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))


def test_operators_of_two() -> None:
    compare(
        {
            "sums": lambda x, y, r: [x + y, x + r, r - x, x - 2j, torch.add(x, y, alpha=2 - 1j), 3 - x],
            "products": lambda x, y, r: [x * y, x * r, r * x, x * 2j, x * 2, r * 1j, torch.arange(4) * 1j],
            "quotients": lambda x, y, r: [x / y, x / r, r / x, x / 2j, x / 2, 2 / x, 1j / r, x.reciprocal()],
            "broadcasts": lambda x, y, r: [x[:1] + r, r[0] + x[:, :1], r * x[:, :1], torch.complex(r, r[:1])],
            "comparisons": lambda x, y, r: [x == y, x != x.conj(), x == r, r.to(x.dtype) == r, x == 1j],
            "powers": lambda x, y, r: [x**2, x**3, x**1],
        },
        numbers(3, 4),
        numbers(3, 4).flip(0),
        numbers(3, 4).real.contiguous(),
        tolerance=3e-6,
    )


def test_functions_of_parts() -> None:
    compare(
        {
            "parts": lambda x, r: [x.real, x.imag, r.real, torch.view_as_real(x * 1), torch.complex(r, -r)],
            "signs": lambda x, r: [
                -x,
                x.conj().resolve_conj(),
                torch.conj_physical(x),
                torch.conj_physical(r),
            ],
            "types": lambda x, r: [
                r.to(x.dtype),
                x.to(torch.complex128),
                x.to(torch.float64),
                x.to(torch.bool),
            ],
        },
        numbers(3, 4),
        numbers(3, 4).real.contiguous(),
    )


def test_functions() -> None:
    compare(
        {
            "polar": lambda x, r: [x.abs(), x.angle(), r.angle(), torch.polar(r, r), x.sgn(), r.sgn()],
            "exponentials": lambda x, r: [x.exp(), (1j * r).exp(), x.log()],
        },
        numbers(3, 4),
        numbers(3, 4).real.contiguous(),
        tolerance=3e-6,
    )


def test_large_numbers_and_zeros() -> None:
    x = torch.tensor([3e30 + 4e30j, 3e-30 + 4e-30j, 0j, math.inf + 1j, complex(1, math.nan)])
    compare(
        {
            "magnitudes": lambda x: [x.abs(), x.sgn()[:3]],
            "quotients": lambda x: [x[:2] / x[:2], (1 + 1j) / x[:2].abs(), x[:2].reciprocal()],
            "by zero": lambda x: [x[:2] / x[2]],
        },
        x,
    )


def test_other_exponents_are_refused() -> None:
    assert "the exponent 0.5" in refusal(lambda x: x**0.5, numbers(3))
