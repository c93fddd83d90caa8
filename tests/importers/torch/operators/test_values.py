# SPDX-License-Identifier: Apache-2.0
"""Numbers in PyTorch's types: they wrap around in integers, and promote floats and booleans."""

from __future__ import annotations

import pytest
import torch

from tests.importers.torch.programs import compare
from tvm_stitch.importers.torch.operators.values import array, constant, wrapped


@pytest.mark.parametrize(
    ("value", "dtype", "as_integer"),
    [(300, "uint8", 44), (-3, "uint8", 253), (200, "int8", -56), (2**63, "int64", -(2**63)), (7, "int32", 7)],
)
def test_integers_wrap_around(value: int, dtype: str, as_integer: int) -> None:
    assert wrapped(value, dtype) == as_integer
    assert int(constant(value, dtype).value.numpy()) == as_integer


def test_constants_keep_64_bits() -> None:
    assert str(array(torch.arange(3).numpy()).ty.dtype) == "int64"
    assert str(constant(3, "int64").ty.dtype) == "int64"


def test_numbers_that_do_not_fit() -> None:
    compare(
        {
            "-u": lambda u, b: -u,
            "abs, sign": lambda u, b: [u.abs(), u.sign()],
            "clamp": lambda u, b: u.clamp(-5, 5),
            "u + -3": lambda u, b: [u + -3, u - 3, 3 - u, u * -1],
            "comparisons": lambda u, b: [u > -1, u < 300, u == 300, u != -1, u.view(torch.int8) < 200],
            "floats": lambda u, b: [u * 2.5, u < 2.5, u / 3],
            "bits": lambda u, b: [u & -2, u | 256, u ^ -1, ~u],
            "filled": lambda u, b: [u.masked_fill(b, -1), torch.where(b, u, -1), torch.full_like(u, -1)],
            "booleans": lambda u, b: [b + 300, b * 2.5, b * -1, b + b, ~b],
            "widened": lambda u, b: [u + torch.tensor(300), u.long() + 300],
        },
        torch.tensor([128, 0, 1, 255], dtype=torch.uint8),
        torch.tensor([True, False, False, True]),
    )


def test_numbers_counted_from_the_end() -> None:
    x = torch.randn(5, 6)
    compare(
        {
            "x[i]": lambda x, i: [x[i], x[:, i], x[i - 1], x[i, i], x[i.int()]],
            "take": lambda x, i: torch.take(x, i),
            "written": lambda x, i: x.index_put([i], torch.zeros(6)),
        },
        x,
        torch.tensor([-1, 0, -3]),
    )
