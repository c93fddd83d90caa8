# SPDX-License-Identifier: Apache-2.0
"""Activations and norms as PyTorch computes them: what TVM's importer leaves out is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_stitch

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program  # noqa: E402

from tests.importers.torch.programs import Called, compiled, imported  # noqa: E402
from tvm_stitch.importers.torch.converters import torch_converters  # noqa: E402

LLVM = tvm.target.Target("llvm")


def run(model: Any, x: Any, **how: Any) -> np.ndarray:
    program = torch.export.export(model.eval(), (x,))
    mod = from_exported_program(program, unwrap_unit_return_tuple=True, **how)
    return relax.VirtualMachine(tvm_stitch.compile(mod, LLVM), tvm.cpu())["main"](
        tvm.runtime.tensor(x.numpy())
    ).numpy()


class Elu(nn.Module):
    def __init__(self, *scales: float) -> None:
        super().__init__()
        self.scales = scales

    def forward(self, x: Any) -> Any:
        return torch.ops.aten.elu.default(x, *self.scales)


MODELS = {
    "selu": nn.SELU(),
    "elu": nn.ELU(),
    "elu of another alpha": nn.ELU(0.3),
    "elu of three scales": Elu(0.7, 1.3, 0.4),
    "celu": nn.CELU(0.6),
    "gelu": nn.GELU(),
    "gelu by tanh": nn.GELU("tanh"),
    "softplus": nn.Softplus(2.0, 3.0),
    "leaky relu": nn.LeakyReLU(0.2),
    "log sigmoid": nn.LogSigmoid(),
    "mish": nn.Mish(),
    "hard swish": nn.Hardswish(),
    "hard sigmoid": nn.Hardsigmoid(),
    "hard tanh": nn.Hardtanh(-0.4, 1.7),
    "soft shrink": nn.Softshrink(0.3),
    "threshold": nn.Threshold(0.1, -2.0),
    "softsign": nn.Softsign(),
    "tanh shrink": nn.Tanhshrink(),
    "relu 6": nn.ReLU6(),
}


@pytest.mark.parametrize("name", MODELS)
def test_activations(name: str) -> None:
    x = torch.cat([torch.linspace(-9, 9, 61), torch.tensor([-200.0, 0.0, 95.0])])
    found = run(MODELS[name], x, custom_convert_map=torch_converters())
    wanted = MODELS[name](x.double()).numpy()
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


def test_tvm_still_leaves_out_the_scale() -> None:
    x = torch.linspace(-3, 3, 16)
    assert np.abs(run(nn.SELU(), x) - F.selu(x).numpy()).max() > 0.01, "the converter is needed no longer"


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 4, 3), (1, 6, 2, 3, 2)])
def test_group_norms(shape: tuple[int, ...], groups: int, affine: bool) -> None:
    torch.manual_seed(0)
    norm, x = nn.GroupNorm(groups, 6, affine=affine), torch.randn(shape)
    if affine:
        nn.init.uniform_(norm.weight)
        nn.init.uniform_(norm.bias)
    found = run(norm, x, keep_params_as_input=False, custom_convert_map=torch_converters())
    np.testing.assert_allclose(found, norm.double()(x.double()).detach().numpy(), rtol=1e-5, atol=1e-5)


class OfIntegers(nn.Module):
    """Operators that give floats of integers: frequencies of positions, buckets of distances."""

    def forward(self, x: Any) -> Any:
        n = torch.arange(1, 7)
        powers = x + 2.0**n + torch.pow(n, x) + torch.pow(1.5, x) + torch.pow(x.abs(), n)
        return powers + n / 4 + n / n.flip(0) + 3 / n + torch.log(n) + torch.sin(n) + torch.exp(-n) + x / n


class RoundedQuotients(nn.Module):
    """Of floats by an integer, as positions' encodings have them, and of integers."""

    def forward(self, x: Any) -> Any:
        n, found = torch.tensor([-7, -4, -1, 1, 4, 7]), 0
        for mode in (None, "floor", "trunc"):
            found = found + torch.div(x, 2, rounding_mode=mode) + torch.div(n, 3, rounding_mode=mode)
            found = (
                found + torch.div(n, n.flip(0), rounding_mode=mode) + torch.div(n, 1.5, rounding_mode=mode)
            )
        return found + x // 2 + n // 3


@pytest.mark.parametrize("model", [OfIntegers(), RoundedQuotients()])
def test_what_the_importer_lacks(model: Any) -> None:
    x = torch.linspace(-3, 3, 2 * 5 * 6).reshape(2, 5, 6)
    found = run(model, x, custom_convert_map=torch_converters())
    np.testing.assert_allclose(found, model(x.double()).numpy(), rtol=1e-5, atol=1e-5)


REDUCTIONS = {
    "logsumexp": lambda x: (torch.logsumexp(x, 1), torch.logsumexp(x, (0, 2), keepdim=True)),
    "amax": lambda x: (x.amax((0, 2)), x.amax(-1, keepdim=True), x.amax()),
    "amin": lambda x: (x.amin(1), x.amin((1, 2), keepdim=True)),
    "min": lambda x: (*x.min(1), *x.min(-1, keepdim=True)),
    "any": lambda x: ((x > 2).any(), (x > 99).any(), x.any(), torch.zeros_like(x).any()),
    "prod": lambda x: (x.prod(1), (x > -1).to(torch.int32).prod(2, keepdim=True), (x > 0).prod(0)),
    "prod of a type": lambda x: (x.prod(1, dtype=torch.float64),),
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, symbolic: bool) -> None:
    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return REDUCTIONS[name](x)

    torch.manual_seed(0)
    x = torch.randn(3, 4, 6)
    x[1, 2, 3] = -torch.inf
    rows = {"x": {0: torch.export.Dim("rows")}} if symbolic else None
    program = torch.export.export(Model(), (x,), dynamic_shapes=rows)
    mod = from_exported_program(program, custom_convert_map=torch_converters())
    found = relax.VirtualMachine(tvm_stitch.compile(mod, LLVM), tvm.cpu())["main"](
        tvm.runtime.tensor(x.numpy())
    )
    wanted = Model()(x)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        assert one.numpy().dtype == other.numpy().dtype and one.numpy().shape == tuple(other.shape)
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-6, atol=2e-6)


class Joined(nn.Module):
    """Tensors of nothing, as caches begin, and of several types."""

    def forward(self, x: Any) -> Any:
        nothing, counts = torch.tensor([]), torch.arange(6)
        grown = torch.cat([nothing, x], -2)
        return torch.cat([nothing, grown, x + 1, torch.zeros(0)], dim=1), torch.cat(
            [counts, x[0, 0], nothing]
        )


@pytest.mark.parametrize("symbolic", [False, True])
def test_concatenations(symbolic: bool) -> None:
    x = torch.randn(2, 4, 6)
    rows = {"x": {0: torch.export.Dim("rows", min=2)}} if symbolic else None
    program = torch.export.export(Joined(), (x,), dynamic_shapes=rows)
    mod = from_exported_program(program, custom_convert_map=torch_converters())
    found = relax.VirtualMachine(tvm_stitch.compile(mod, LLVM), tvm.cpu())["main"](
        tvm.runtime.tensor(x.numpy())
    )
    for one, other in zip(found, Joined()(x), strict=True):
        assert one.numpy().dtype == other.numpy().dtype
        np.testing.assert_array_equal(one.numpy(), other.numpy())


class CountingDown(nn.Module):
    """Positions are relative, as in Funnel. The number of elements depends on the input's if that is symbolic."""

    def forward(self, x: Any) -> Any:
        n = x.shape[0]
        down = torch.arange(n, -n, -1), torch.arange(2 * n, -1, -2), torch.arange(n - 1, 2 - 3 * n, -4)
        return *down, torch.arange(0, 3 * n, 2), torch.arange(3.5, -2, -0.5), torch.arange(9, -8, -3.0) + x[0]


@pytest.mark.parametrize("rows", [2, 5, 8])
@pytest.mark.parametrize("symbolic", [False, True])
def test_ranges(symbolic: bool, rows: int) -> None:
    shapes = {"x": {0: torch.export.Dim("rows", min=2, max=64)}} if symbolic else None
    program = torch.export.export(
        CountingDown(), (torch.randn(7 if symbolic else rows, 1),), dynamic_shapes=shapes
    )
    mod = from_exported_program(program, custom_convert_map=torch_converters())
    x = torch.randn(rows, 1)
    found = relax.VirtualMachine(tvm_stitch.compile(mod, LLVM), tvm.cpu())["main"](
        tvm.runtime.tensor(x.numpy())
    )
    for one, other in zip(found, CountingDown()(x), strict=True):
        assert one.numpy().dtype == other.numpy().dtype
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-6)


def test_a_negated_comparison_of_extents() -> None:
    def selected(x: Any) -> Any:
        some = x[x > 0]
        torch._check(some.shape[0] != 0)
        return some + 1

    x = torch.tensor([1.0, -2.0, 3.0])
    assert any(
        "sym_not" in str(node.target) for node in torch.export.export(Called(selected), (x,)).graph.nodes
    )
    np.testing.assert_array_equal(compiled(imported(selected, x))(x)[0], [2.0, 4.0])
