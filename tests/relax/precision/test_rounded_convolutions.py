# SPDX-License-Identifier: Apache-2.0
"""Convolutions of half types whose float32 results are rounded at once, where cuDNN computes convolutions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
import tvm_stitch.relax
from tests.relax import cudnn_stand_in
from tvm_stitch.compute.cuda import library
from tvm_stitch.front.sources import source_of
from tvm_stitch.relax.library.convolutions import LibraryConvolutions, is_computed
from tvm_stitch.relax.precision.rounded_convolutions import RoundedConvolutions

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
F16, F32 = "float16", "float32"
THIRD = np.full((1, 4, 1, 1), 1 / 3)
BIAS = THIRD.astype(F16)
Emit = Callable[[relax.Expr], relax.Expr]


def made(write: Callable[[Emit, relax.Expr, relax.Expr], list[relax.Expr]], dtype: str = F16) -> tvm.IRModule:
    """Return a module of a function of an image and a weight that returns what ``write`` emits."""
    builder = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType(s, dtype)) for n, s in (("x", (2, 3, 8, 8)), ("w", (4, 3, 3, 3))))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            found = write(builder.emit, x, w)
            results = [builder.emit_output(each) for each in found]
        builder.emit_func_output(results[0] if len(results) == 1 else results)
    return builder.get()


def convolution(x: relax.Expr, w: relax.Expr, dtype: str) -> relax.Expr:
    return R.nn.conv2d(x, w, strides=2, padding=1, out_dtype=dtype)


def rounded(mod: tvm.IRModule, installed: bool = True) -> tvm.IRModule:
    return RoundedConvolutions(lambda: installed, partial(is_computed, CUDA))(mod)


def test_a_cast_belongs_to_the_convolution() -> None:
    before = made(lambda emit, x, w: [R.nn.relu(emit(R.astype(emit(convolution(x, w, F32)), F16)))])
    after = made(lambda emit, x, w: [R.nn.relu(emit(convolution(x, w, F16)))])
    tvm.ir.assert_structural_equal(rounded(before), after)
    tvm.ir.assert_structural_equal(rounded(before, installed=False), before)


@pytest.mark.parametrize("first", [True, False], ids=["convolution first", "bias first"])
def test_so_does_one_behind_a_bias_of_half_numbers(first: bool) -> None:
    def added(value: relax.Expr, dtype: str) -> relax.Expr:
        bias = relax.const(BIAS.astype(dtype), dtype)
        return R.add(value, bias) if first or dtype == F16 else R.add(bias, value)

    before = made(lambda emit, x, w: [R.astype(emit(added(emit(convolution(x, w, F32)), F32)), F16)])
    after = made(lambda emit, x, w: [added(emit(convolution(x, w, F16)), F16)])
    tvm.ir.assert_structural_equal(rounded(before), after)


def exact_bias(emit: Emit, x: relax.Expr, w: relax.Expr) -> list[relax.Expr]:
    return [R.astype(emit(R.add(emit(convolution(x, w, F32)), relax.const(THIRD.astype(F32)))), F16)]


def two_readers(emit: Emit, x: relax.Expr, w: relax.Expr) -> list[relax.Expr]:
    wide = emit(convolution(x, w, F32))
    return [R.astype(wide, F16), R.exp(wide)]


def read_wide(emit: Emit, x: relax.Expr, w: relax.Expr) -> list[relax.Expr]:
    return [R.astype(emit(R.multiply(emit(convolution(x, w, F32)), relax.const(2.0))), F16)]


def uneven_padding(emit: Emit, x: relax.Expr, w: relax.Expr) -> list[relax.Expr]:
    return [R.astype(emit(R.nn.conv2d(x, w, padding=[0, 1, 1, 2], out_dtype=F32)), F16)]


@pytest.mark.parametrize("write", [exact_bias, two_readers, read_wide, uneven_padding])
def test_what_is_read_in_float32_or_not_computed_by_the_library_stays(write: Callable) -> None:
    before = made(write)
    tvm.ir.assert_structural_equal(rounded(before), before)


def test_convolutions_of_float32_stay() -> None:
    before = made(lambda emit, x, w: [R.astype(emit(convolution(x, w, F32)), F16)], F32)
    tvm.ir.assert_structural_equal(rounded(before), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_no_convolution_of_a_half_module_is_left_to_tvm(dtype: torch.dtype, bias: bool) -> None:
    layers = torch.nn.Conv2d(8, 16, 3, bias=bias), torch.nn.BatchNorm2d(16), torch.nn.ReLU()
    module = torch.nn.Sequential(*layers, torch.nn.Conv2d(16, 16, 3, groups=4, bias=bias)).to(dtype).eval()
    x = torch.randn(2, 8, 14, 14, dtype=dtype)
    report = tvm_stitch.explain(module, CUDA, example_inputs=(x,), compute="libraries").verbose()
    assert "TVM:" not in report and report.count("cuDNN: channels") == 2


def test_a_half_module_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUDNN, "function", cudnn_stand_in.NAME)
    torch.manual_seed(0)
    layers = (
        torch.nn.Conv2d(8, 16, 3, bias=False),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, groups=4, bias=False),
    )
    module = torch.nn.Sequential(*layers, torch.nn.BatchNorm2d(16)).half().eval()
    x = torch.randn(2, 8, 11, 9).half()
    mod = rounded(source_of(module, (x,)).mod)
    made = LibraryConvolutions(CUDA, tvm_stitch.StitchConfig(compute="libraries"))(mod)
    assert made.script().count("call_dps_packed") == 2
    executable = tvm.compile(made, "llvm", relax_pipeline=tvm_stitch.relax.pipeline("llvm"))
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x.numpy()))
    found = found[0] if not isinstance(found, tvm.runtime.Tensor) else found
    wanted = module.double()(x.double()).detach().numpy()
    assert np.abs(found.numpy() - wanted).max() < 2e-3 * np.abs(wanted).max()
