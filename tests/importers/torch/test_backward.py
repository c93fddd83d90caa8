# SPDX-License-Identifier: Apache-2.0
"""Operators of norms and convolutions in training graphs, imported, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_stitch

torch = pytest.importorskip("torch")

from tvm.relax.frontend.torch import from_exported_program  # noqa: E402

from tvm_stitch.cli.readers.torch import read_torch  # noqa: E402
from tvm_stitch.importers.torch.backward import backward_converters  # noqa: E402

Tensors = Sequence[Any]
aten = torch.ops.aten
LLVM = tvm.target.Target("llvm")


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return tuple(r for r in self.function(*tensors) if r is not None)


def imported(program: Any) -> tvm.IRModule:
    return from_exported_program(program, custom_convert_map=backward_converters())


def check(function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
    """Check that a function of tensors of some shapes gives what PyTorch gives."""
    generator = torch.Generator().manual_seed(len(shapes))
    tensors = [torch.rand(shape, generator=generator) + 0.25 for shape in shapes]
    program = torch.export.export(Calls(function), tuple(tensors))
    vm = relax.VirtualMachine(tvm_stitch.compile(imported(program), LLVM), tvm.cpu())
    found = vm["main"](*(tvm.runtime.tensor(t.numpy()) for t in tensors))
    wanted = [r for r in function(*(t.double() for t in tensors)) if r is not None]
    assert len(found) == len(wanted) > 0
    for got, want in zip(found, wanted):
        assert tuple(got.shape) == tuple(want.shape)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-5, atol=2e-5 * float(want.abs().max()))


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norms_give_what_they_kept(groups: int) -> None:
    def norm(x: Any, w: Any, b: Any) -> Any:
        return aten.native_group_norm(x, w, b, 3, 6, 20, groups, 1e-3)

    check(norm, (3, 6, 4, 5), (6,), (6,))
    check(lambda x: norm(x, None, None)[1:], (3, 6, 4, 5))


@pytest.mark.parametrize("axes", [1, 2])
def test_layer_norms_give_what_they_kept(axes: int) -> None:
    shape = (3, 5, 8)
    inner = shape[-axes:]
    check(lambda x, w, b: aten.native_layer_norm(x, list(inner), w, b, 1e-3), shape, inner, inner)
    check(lambda x: aten.native_layer_norm(x, list(inner), None, None, 1e-3)[1:], shape)


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (7, 3, 4)])
def test_batch_norms_give_what_they_kept(shape: tuple[int, ...]) -> None:
    channels = (shape[1],)
    check(
        lambda x, w, b: aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-3),
        shape, channels, channels,
    )  # fmt: skip


@pytest.mark.parametrize("affine", [True, False])
def test_running_statistics_move(affine: bool) -> None:
    def norm(x: Any, mean: Any, variance: Any, *affine: Any) -> Any:
        weight, bias = affine or (None, None)
        return aten._native_batch_norm_legit_functional(x, weight, bias, mean, variance, True, 0.3, 1e-3)

    check(norm, (4, 3, 5, 6), *[(3,)] * (4 if affine else 2))


SIZES = {
    "plain": ((2, 3, 7, 6), (4, 3, 3, 3), [1, 1], [0, 0], [1, 1]),
    "padded": ((2, 3, 7, 6), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1]),
    "strides that leave a rest": ((2, 3, 8, 7), (4, 3, 3, 3), [2, 3], [1, 0], [1, 1]),
    "dilated": ((2, 3, 9, 8), (4, 3, 3, 2), [1, 1], [2, 1], [2, 2]),
    "strides and dilation": ((1, 2, 11, 12), (3, 2, 2, 3), [3, 2], [0, 2], [2, 1]),
    "1 x 1": ((2, 3, 6, 6), (4, 3, 1, 1), [2, 2], [0, 0], [1, 1]),
    "one number": ((2, 3, 7, 6), (4, 3, 3, 3), [2], [1], [1]),
}


GROUPED = {
    "grouped": ((2, 6, 7, 6), (8, 3, 3, 3), [1, 1], [1, 1], [1, 1], 2),
    "depthwise": ((2, 5, 8, 7), (5, 1, 3, 3), [2, 1], [1, 1], [1, 2], 5),
    "depthwise with a multiplier": ((3, 4, 7, 7), (8, 1, 3, 2), [1, 2], [0, 1], [1, 1], 4),
    "one axis": ((2, 3, 11), (4, 3, 3), [2], [1], [2], 1),
    "one axis, grouped": ((2, 4, 10), (6, 2, 3), [3], [1], [1], 2),
    "three axes": ((1, 3, 5, 6, 4), (2, 3, 3, 2, 3), [1, 2, 1], [1, 0, 1], [1, 1, 1], 1),
}
TRANSPOSED = {
    "plain": ((2, 3, 5, 4), (3, 4, 3, 3), [1, 1], [0, 0], [1, 1], [0, 0], 1),
    "strides": ((2, 3, 5, 4), (3, 4, 3, 2), [2, 3], [1, 0], [1, 1], [1, 2], 1),
    "dilated": ((1, 2, 6, 5), (2, 3, 3, 2), [1, 2], [1, 1], [2, 3], [1, 0], 1),
    "output padding of a stride": ((1, 2, 4, 4), (2, 3, 2, 2), [1, 1], [0, 0], [2, 2], [1, 1], 1),
    "grouped": ((2, 6, 5, 4), (6, 2, 3, 3), [2, 1], [1, 0], [1, 1], [1, 0], 3),
    "depthwise": ((2, 4, 5, 5), (4, 1, 4, 4), [2, 2], [1, 1], [1, 1], [0, 0], 4),
    "one axis": ((2, 3, 6), (3, 4, 3), [2], [1], [1], [1], 1),
}
MASKS = pytest.mark.parametrize("mask", [[True] * 3, [False, True, False], [True, False, False]], ids=str)


def check_gradient(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    options: list[Any],
    transposed: bool,
    groups: int,
    mask: Any,
) -> None:
    """Compute the gradients of a convolution of stride, padding, dilation and output padding."""
    *moved, more = options
    forward = aten.convolution(torch.zeros(size), torch.zeros(kernel), None, *moved, transposed, more, groups)
    channels = forward.shape[1]
    check(
        lambda grad, x, w: aten.convolution_backward(
            grad, x, w, [channels], *moved, transposed, more, groups, mask
        ),
        tuple(forward.shape), size, kernel,
    )  # fmt: skip


@MASKS
@pytest.mark.parametrize("name", SIZES)
def test_gradients_of_convolutions(name: str, mask: list[bool]) -> None:
    size, kernel, *options = SIZES[name]
    check_gradient(size, kernel, [*options, [0] * len(options[0])], False, 1, mask)


@MASKS
@pytest.mark.parametrize("name", GROUPED)
def test_gradients_of_grouped_convolutions(name: str, mask: list[bool]) -> None:
    size, kernel, *options, groups = GROUPED[name]
    check_gradient(size, kernel, [*options, [0] * len(options[0])], False, groups, mask)


@MASKS
@pytest.mark.parametrize("name", TRANSPOSED)
def test_gradients_of_transposed_convolutions(name: str, mask: list[bool]) -> None:
    size, kernel, *options, groups = TRANSPOSED[name]
    check_gradient(size, kernel, options, True, groups, mask)


@pytest.mark.parametrize("operator", [aten.silu_backward.default, aten.mish_backward.default], ids=str)
def test_gradients_of_activations(operator: Any) -> None:
    check(
        lambda grad, x: [operator(grad, x), operator(grad, -20 * x), operator(grad, 20 * x)], (3, 5), (3, 5)
    )


def test_results_that_nobody_reads_are_not_computed() -> None:
    program = torch.export.export(torch.nn.LayerNorm(8), (torch.zeros(3, 8),))
    before = from_exported_program(program)
    tvm.ir.assert_structural_equal(imported(program), before)


def test_importing_files_uses_them(tmp_path: Any) -> None:
    program = torch.export.export(
        Calls(lambda x: aten.native_layer_norm(x, [8], None, None, 1e-3)), (torch.zeros(3, 8),)
    )
    torch.export.save(program, tmp_path / "model.pt2")
    for names in (False, True):
        model = read_torch(tmp_path / "model.pt2", {}, names)
        assert [tuple(spec.shape) for spec in model.outputs] == [(3, 8), (3, 1), (3, 1)]
