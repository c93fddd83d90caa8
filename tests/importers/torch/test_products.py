# SPDX-License-Identifier: Apache-2.0
"""Products, convolutions and norms of PyTorch in every type of floats, and products of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.importers.torch.test_indexing import numbers, run  # noqa: E402
from tvm_stitch.importers.torch.converters import torch_converters  # noqa: E402

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}
FLOAT32_AT_BEST = ("convolutions", "batch norms")
"""Operators that TVM's importer computes in float32, with inputs of any type."""


def _weights(*shape: int, like: Any) -> Any:
    return torch.tensor(np.cos(np.arange(np.prod(shape)) * 1.7).reshape(shape).tolist(), dtype=like.dtype) / 4


CASES: dict[str, Callable[[Any], list[Any]]] = {
    "products": lambda x: [
        x @ _weights(6, 5, like=x),
        x[0] @ _weights(6, 5, like=x),
        x @ x.transpose(1, 2),
        x[0] @ _weights(6, like=x),
    ],
    "linear layers": lambda x: [
        F.gelu(F.linear(x, _weights(7, 6, like=x), _weights(7, like=x))),
        F.linear(x, _weights(7, 6, like=x)),
    ],
    "sums with products": lambda x: [
        torch.addmm(x[0], x[0, :, :4], x[1, :4], beta=0.5, alpha=2),
        torch.addmm(x[0] * torch.nan, x[0, :, :4], x[1, :4], beta=0),
        torch.baddbmm(x, x[:, :, :4], x[:, :4], alpha=-1),
        torch.addmv(x[0, :, 0], x[0], x[1, 0], beta=2, alpha=3),
    ],
    "convolutions": lambda x: [
        F.relu(F.conv1d(x, _weights(4, 5, 3, like=x), _weights(4, like=x), padding=1)),
        F.conv2d(x[None], _weights(4, 2, 3, 3, like=x), _weights(4, like=x)),
        F.conv1d(x, _weights(5, 1, 3, like=x), groups=5),
        F.conv_transpose1d(x, _weights(5, 3, 2, like=x), _weights(3, like=x), stride=2),
        F.conv_transpose1d(x, _weights(5, 3, 2, like=x), stride=2, padding=1, dilation=4, output_padding=3),
        F.conv_transpose2d(
            x[None],
            _weights(2, 3, 2, 2, like=x),
            _weights(3, like=x),
            stride=(1, 3),
            padding=(0, 2),
            dilation=3,
            output_padding=(2, 1),
        ),
    ],
    "batch norms": lambda x: [
        F.batch_norm(x, *(_weights(5, like=x) ** 2 + 0.5 for _ in range(4))),
        F.batch_norm(x, _weights(5, like=x), _weights(5, like=x) ** 2 + 0.5),
        *torch.native_batch_norm(
            x, None, None, _weights(5, like=x), _weights(5, like=x) ** 2 + 0.5, False, 0.1, 1e-5
        ),
    ],
    "group norms": lambda x: [F.group_norm(x, 5, _weights(5, like=x), _weights(5, like=x))],
    "layer norms": lambda x: [F.layer_norm(x, (6,), _weights(6, like=x), _weights(6, like=x))],
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_types_of_floats(name: str, dtype: str) -> None:
    kind = getattr(torch, dtype)
    dtypes: list[Any] = []

    def halved(x: Any) -> list[Any]:
        found = CASES[name](x.to(kind))
        dtypes.extend(each.dtype for each in found)
        return [each.to(x.dtype) for each in found]

    x = numbers(2, 5, 6).to(kind).to(torch.float64 if dtype == "float64" else torch.float32)
    found = run(halved, x, custom_convert_map=torch_converters())
    assert set(dtypes) == {kind}
    tolerance = max(TOLERANCE[dtype], 1e-6 if name in FLOAT32_AT_BEST else 0)
    for got, want in zip(found, halved(x), strict=True):
        assert got.shape == tuple(want.shape)
        np.testing.assert_allclose(got, want.numpy(), rtol=tolerance, atol=tolerance)


def test_products_of_integers_stay_integers() -> None:
    x = torch.arange(12).reshape(3, 4) + 2**30
    (found,) = run(lambda x: [x @ x.T], x, custom_convert_map=torch_converters())
    np.testing.assert_array_equal(found, (x @ x.T).numpy())


def test_a_model_of_halves() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
            self.groups, self.linear = nn.GroupNorm(2, 8), nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            y = self.groups(F.relu(self.norm(self.convolution(x.bfloat16()))))
            return [self.linear(y.mean((2, 3))).softmax(-1).float()]

    torch.manual_seed(0)
    model = Model().eval().bfloat16().requires_grad_(False)
    x = numbers(2, 3, 6, 6)
    (found,) = run(model, x, custom_convert_map=torch_converters())
    np.testing.assert_allclose(found, model(x)[0].numpy(), rtol=3e-2, atol=3e-2)


def test_tvm_still_makes_float32_of_all_products() -> None:
    (found,) = run(lambda x: [x @ x.T], numbers(3, 4).double())
    assert found.dtype == "float32", "the converters are needed no longer"
