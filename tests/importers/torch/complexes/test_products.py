# SPDX-License-Identifier: Apache-2.0
"""Products of complex matrices against PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.importers.torch.complexes.test_arithmetic import numbers  # noqa: E402
from tests.importers.torch.programs import compare  # noqa: E402


def test_products() -> None:
    compare(
        {
            "matrices": lambda x, y: [
                x @ y,
                x[0] @ y[0],
                x[0] @ y[0, :, 0],
                torch.bmm(x, y),
                x[0, 0] @ y[0, :, 0],
            ],
            "a real operand": lambda x, y: [x @ torch.complex(y.real, 0 * y.imag), (x.real + 0j) @ y],
            "einsum": lambda x, y: [torch.einsum("bxi,bio->bxo", x, y), torch.einsum("bxi,cix->bc", x, y)],
            "sums": lambda x, y: [
                torch.addmm(x[0, :2, :2], x[0, :2], y[0, :, :2], beta=2j, alpha=1 - 1j),
                torch.baddbmm(x[:, :2, :2] * torch.nan, x[:, :2], y[:, :, :2], beta=0),
                torch.addmv(x[0, :, 0], x[0], y[0, :, 0]),
            ],
        },
        numbers(2, 3, 5),
        numbers(2, 5, 3),
        tolerance=5e-6,
    )
