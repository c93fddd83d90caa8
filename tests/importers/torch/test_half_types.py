# SPDX-License-Identifier: Apache-2.0
"""Functions of half types are as near to float64 as PyTorch's, which computes them in float32."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import tvm_stitch  # noqa: E402
from tests.importers.torch.programs import Called  # noqa: E402

FUNCTIONS = {
    "gelu": F.gelu,
    "selu": F.selu,
    "elu": lambda x: F.elu(x, 0.3),
    "celu": lambda x: F.celu(x, 1.3),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "hypot": lambda x: torch.hypot(x, x.flip(0)),
    "layer norm": lambda x: F.layer_norm(x, (31,), x[0, 0], x[0, 1]),
    "softmax": lambda x: F.softmax(x, -1),
    "pool": lambda x: F.adaptive_avg_pool2d(x[None], (4, 9)),
    "resize": lambda x: F.interpolate(x, 44, mode="linear"),
    "resize less": lambda x: F.interpolate(x[None], (5, 17), mode="bilinear"),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_errors_are_at_most_pytorchs(dtype: torch.dtype) -> None:
    x = (3 * torch.randn(9, 7, 31)).to(dtype)

    def all_of(x: torch.Tensor) -> list[Any]:
        return [function(x) for function in FUNCTIONS.values()]

    results = tvm_stitch.compile(Called(all_of), "llvm", example_inputs=(x,))(x)
    for name, got, theirs, exact in zip(FUNCTIONS, results, all_of(x), all_of(x.double()), strict=True):
        errors = [(each.double() - exact).square().mean().sqrt() for each in (got, theirs)]
        assert errors[0] <= 1.05 * errors[1], name
