# SPDX-License-Identifier: Apache-2.0
"""Common divisors and orthogonal polynomials against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.importers.torch.programs import compare

S = torch.special


def test_divisors() -> None:
    compare(
        {
            "int64": lambda a, b: [torch.gcd(a, b), torch.lcm(a % 1000, b % 1000)],
            "int32": lambda a, b: torch.gcd(a.to(torch.int32), b[:1].to(torch.int32)),
            "uint8": lambda a, b: [torch.gcd(a.to(torch.uint8), b.to(torch.uint8))],
        },
        torch.tensor([12, 0, -18, 7, 2**62, 0, 7540113804746346429]),
        torch.tensor([18, 0, 12, 0, 3**30, -5, 4660046610375530309]),  # neighbours among Fibonacci's numbers
    )


def test_divisors_of_broadcast_tensors_without_elements() -> None:
    """Their strides were not those of a step's results, so that PyTorch refused the loop."""
    compare(
        {"gcd": torch.gcd}, torch.zeros(0, 1, 3, dtype=torch.int64), torch.zeros(0, 10, 3, dtype=torch.int64)
    )


@pytest.mark.parametrize(
    "name",
    [
        *(f"chebyshev_polynomial_{each}" for each in "tuw"),
        "shifted_chebyshev_polynomial_v",
        "hermite_polynomial_h",
        "hermite_polynomial_he",
        "laguerre_polynomial_l",
        "legendre_polynomial_p",
    ],
)
def test_polynomials(name: str) -> None:
    function: Any = getattr(S, name)
    x = torch.tensor([0.3, -0.7, 1.0, -1.0, 1.5, -2.0, 0.0, 0.9]).repeat(12)
    n = torch.arange(-1, 11).repeat_interleave(8).float()
    compare(
        {
            "degrees": lambda x, n: [function(x, n), function(2.5, n.to(torch.int64))],
            "numbers": lambda x, n: [function(x, 5), function(x, 0), function(x, 1)],
        },
        x,
        n,
        tolerance=1e-4,
    )


def test_high_degrees() -> None:
    compare(
        {
            "hermite": lambda x: [S.hermite_polynomial_he(x, 20), S.hermite_polynomial_h(x, 200)],
            "chebyshev": lambda x: [S.chebyshev_polynomial_t(x, 30), S.shifted_chebyshev_polynomial_u(x, 30)],
        },
        torch.tensor([0.3, -0.7, 1.0, -1.0, 0.5]),
        tolerance=1e-4,
    )
