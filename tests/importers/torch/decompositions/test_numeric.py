# SPDX-License-Identifier: Apache-2.0
"""Signs, hypotenuses, rounded quotients, distances, medians and powers of integers."""

from __future__ import annotations

import math

import pytest
import torch

from tests.importers.torch.programs import compare


def test_pairs_of_floats() -> None:
    compare(
        {
            "copysign": lambda x, y: [
                torch.copysign(x, y),
                torch.copysign(x, -0.0),
                torch.copysign(x.int(), y),
            ],
            "hypot": lambda x, y: [torch.hypot(x, y), torch.hypot(x * 1e30, y * 1e30)],
            "ldexp": lambda x, y: torch.ldexp(x, torch.tensor([-3, 0, 1, 2, 5, 1])),
            "floor": lambda x, y: [
                torch.div(x, 0.1, rounding_mode="floor"),
                torch.div(x, y + 0.1, rounding_mode="floor"),
            ],
        },
        torch.tensor([3.0, -1.0, 0.0, -0.0, math.inf, 2.5]),
        torch.tensor([4.0, -0.0, 0.0, 1.0, -2.0, -math.inf]),
    )


def test_powers_of_integers() -> None:
    compare(
        {
            "tensors": lambda i, j: [i**j, i.to(torch.uint8) ** j.abs().to(torch.uint8), (-i) ** j.abs()],
            "numbers": lambda i, j: [2 ** j.abs(), i**3, i**0],
        },
        torch.tensor([3, -2, 1, -1, 7, 0]),
        torch.tensor([5, 3, -4, -3, 2, 0]),
    )


def test_a_bilinear_form_has_the_type_of_its_operands() -> None:
    """Sums of small integers were int64."""
    compare(
        {
            name: lambda x, w, dtype=dtype: torch.nn.functional.bilinear(
                x.to(dtype), x.to(dtype), w.to(dtype)
            )
            for name, dtype in (("uint8", torch.uint8), ("int16", torch.int16), ("int64", torch.int64))
        },
        torch.randint(0, 9, (3, 4)),
        torch.randint(0, 9, (2, 4, 4)),
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_evenly_spaced_integers_between_tensors(dtype: torch.dtype) -> None:
    """Some lie next to an integer, and are rounded as PyTorch rounds one product and sum."""
    wide = dtype in (torch.int64, torch.int32)
    ends = [(6887, -7969, 10), (-4242, 2714, 1000)] if wide else [(3, 99, 50), (90, 7, 10)]
    ends = [*ends, (5, 9, 1), (5, 9, 0)]
    between = {
        "both tensors": lambda x: [torch.linspace(x + a, x.float() + b, n, dtype=dtype) for a, b, n in ends],
        "one tensor": lambda x: [
            torch.linspace(5, x + 99, 7, dtype=dtype),
            torch.linspace(x, 9, 4, dtype=dtype),
        ],
    }
    compare(between, torch.tensor(0))


def test_distances() -> None:
    compare(
        {
            **{f"{p}": lambda x, y, p=p: torch.cdist(x, y, p) for p in (0.0, 1.0, 2.0, 3.0, math.inf)},
            "of none": lambda x, y: [torch.cdist(x[:0], y, math.inf), torch.cdist(x[:, :0], y[:, :0])],
            "products": lambda x, y: torch.addbmm(
                y[:, :3], x.view(1, 5, 4)[:, :3], y.view(1, 3, 4).mT, beta=0.5, alpha=2
            ),
            "within": lambda x, y: [torch.pdist(x), torch.pdist(y, 1.0)],
            "within none": lambda x, y: [torch.pdist(x[:1]), torch.pdist(x[:, :0], math.inf)],
            "bilinear": lambda x, y: torch.nn.functional.bilinear(x[:3], y, torch.ones(2, 4, 4)),
        },
        torch.randn(5, 4),
        torch.randn(3, 4),
        tolerance=1e-5,
    )


def test_elements_of_an_order() -> None:
    compare(
        {
            "kth": lambda x: [*x.kthvalue(2, 1), *x.kthvalue(1, 0, keepdim=True)],
            "medians": lambda x: [
                *x.median(1),
                x.median(),
                *x.nanmedian(0),
                x.nanmedian(),
                *x.long().median(0),
            ],
        },
        torch.randn(4, 6),
    )


def test_modes() -> None:
    x = torch.tensor([[3.0, 1.0, 3.0, 1.0, 2.0], [0.0, -1.0, 5.0, 5.0, 0.5]])
    compare({"modes": lambda x: [*x.mode(1), *x.mode(0, keepdim=True), x[0, 0].mode().values]}, x)


def test_rows_of_bounded_norms() -> None:
    compare({"renorm": lambda x: [torch.renorm(x, 2, 0, 1.5), torch.renorm(x, 1, 1, 0.5)]}, torch.randn(4, 5))
    compare({"halves": lambda x: torch.renorm(x, 2, 0, 1.5)}, torch.randn(4, 5).half(), tolerance=2e-3)
