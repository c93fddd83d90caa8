# SPDX-License-Identifier: Apache-2.0
"""Grid-wide plans on CUDA under a TVM with Relay, in the emulator: phases as kernels of one function."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

from cuda_emulator import Options, default_target
from tests.relay.codegen.gpu_kernels import GpuKernel, check, function, needs_nvcc
from tests.relay.codegen.kernels import draw
from tvm_stitch.codegen.gpu.grid_barrier import GRID_BARRIER
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import DeviceModel, device_model
from tvm_stitch.plan.gpu.mapping import CrossBlockReduction
from tvm_stitch.relay.cuda_source import compile_with_nvrtc, fixed_cuda_source

WIDE = {"float32": (2e-4, 2e-4), "float16": (2e-2, 2e-2), "bfloat16": (6e-2, 6e-2)}
"""Sums over thousands of rows lose more than one rounding."""


def layer_norm_backward(x: Any, dy: Any, scale: Any) -> list[Any]:
    mean = relay.mean(x, -1, keepdims=True)
    centred = x - mean
    rstd = relay.rsqrt(relay.mean(centred * centred, -1, keepdims=True) + relay.const(1e-5, "float32"))
    normed = centred * rstd
    g = dy * scale
    inner = relay.mean(g * normed, -1, keepdims=True)
    dx = rstd * (g - relay.mean(g, -1, keepdims=True) - normed * inner)
    return [dx, relay.sum(dy * normed, 0), relay.sum(dy, 0)]


def np_layer_norm_backward(x: np.ndarray, dy: np.ndarray, scale: np.ndarray) -> list[np.ndarray]:
    centred = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    normed = centred * rstd
    g = dy * scale
    dx = rstd * (g - g.mean(-1, keepdims=True) - normed * (g * normed).mean(-1, keepdims=True))
    return [dx, (dy * normed).sum(0), dy.sum(0)]


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (100, 77), (700, 256)], ids=str)
def test_layer_norm_backward(shape: tuple[int, int]) -> None:
    kernel = check([shape, shape, shape[-1:]], "float32", layer_norm_backward, np_layer_norm_backward, WIDE)
    if shape[0] > 2:
        assert kernel.plan.grid_wide and not kernel.plan.cooperative
        assert kernel.kernels.count("__launch_bounds__") == 2 * len(kernel.plan.phases)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 5), (33, 1), (1000, 48), (130, 515)], ids=str)
def test_column_sums(shape: tuple[int, int], dtype: str) -> None:
    def body(x: Any) -> Any:
        return relay.sum(relay.tanh(relay.cast(x, "float32")), 0)

    check([shape], dtype, body, lambda x: np.tanh(x).sum(0), WIDE)


def test_sums_over_everything() -> None:
    def body(x: Any) -> list[Any]:
        total = relay.sum(x)
        return [total, relay.exp(x / (total * total + relay.const(1.0, "float32")))]

    check([(300, 41)], "float32", body, lambda x: [x.sum(), np.exp(x / (x.sum() ** 2 + 1))], WIDE)


def columns_rows_columns(x: Any) -> Any:
    """Normalised by columns, then by rows, then summed by columns again."""
    by_columns = x / (relay.sum(relay.exp(x), 0) + relay.const(1.0, "float32"))
    by_rows = by_columns / (relay.sum(relay.exp(by_columns), 1, keepdims=True))
    return relay.sum(by_rows * by_rows, 0)


def np_columns_rows_columns(x: np.ndarray) -> np.ndarray:
    by_columns = x / (np.exp(x).sum(0) + 1)
    by_rows = by_columns / np.exp(by_columns).sum(1, keepdims=True)
    return (by_rows**2).sum(0)


def test_three_phases() -> None:
    kernel = check(
        [(200, 65)], "float32", columns_rows_columns, np_columns_rows_columns, {"float32": (2e-4, 1e-7)}
    )
    assert kernel.plan.grid_wide and len(kernel.plan.phases) >= 3


def test_a_softmax_along_columns_feeds_one_along_rows() -> None:
    def softmax(x: np.ndarray, axis: int) -> np.ndarray:
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    check(
        [(150, 40)],
        "float32",
        lambda x: relay.nn.softmax(relay.nn.softmax(x, 0), 1),
        lambda x: softmax(softmax(x, 0), 1),
        WIDE,
    )


def test_scratch_is_a_workspace_of_the_host_code() -> None:
    """No parameter is added. Every run takes new memory that nobody has written."""
    kernel = check(
        [(1000, 48)], "float32", lambda x: relay.sum(relay.exp(x), 0), lambda x: np.exp(x).sum(0), WIDE
    )
    assert kernel.plan.grid_wide and kernel.plan.scratch
    assert len(kernel.func.params) == 2
    assert "scratch0" in kernel.kernels


BARRIERS = StitchConfig(plain_launch_barriers=True)


def device() -> DeviceModel:
    return device_model(default_target(), BARRIERS)


def test_barriers_are_to_be_asked_for() -> None:
    assert not device_model(default_target()).cooperative
    assert not device_model(default_target(), StitchConfig(grid_barriers=True)).cooperative
    assert device().cooperative and device().max_cluster == 1
    without = StitchConfig(plain_launch_barriers=True, grid_barriers=False)
    kernel = GpuKernel(function([(1000, 48)], "float32", lambda x: relay.sum(x, 0)), without, device())
    assert GRID_BARRIER not in kernel.source


@pytest.mark.parametrize("shape", [(3, 2), (100, 77), (700, 256)], ids=str)
def test_a_barrier_in_place_of_two_kernels(shape: tuple[int, int]) -> None:
    check(
        [shape, shape, shape[-1:]], "float32", layer_norm_backward, np_layer_norm_backward, WIDE, BARRIERS, device(),
        options=Options(resident_blocks=2 * 132),
    )  # fmt: skip


def test_barriers_one_after_the_other() -> None:
    kernel = check(
        [(200, 65)], "float32", columns_rows_columns, np_columns_rows_columns, {"float32": (2e-4, 1e-7)}, BARRIERS,
        device(),
    )  # fmt: skip
    assert kernel.plan.grid_wide and kernel.plan.cooperative
    assert kernel.kernels.count("__launch_bounds__") == 2
    assert kernel.kernels.count(GRID_BARRIER) == len(kernel.plan.phases) - 1 >= 3


def test_rows_shared_by_blocks() -> None:
    """Few long rows: partial results cross blocks behind a barrier, those of a maximum and its sum behind one."""

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    kernel = check([(2, 300_000)], "float32", relay.nn.softmax, softmax, None, BARRIERS, device(), seeds=(3,))
    assert kernel.plan.stage.mapping.exchange is CrossBlockReduction.GRID
    assert kernel.kernels.count(GRID_BARRIER) == 1


def test_one_lowering_is_launched_again_and_again() -> None:
    kernel = GpuKernel(function([(500, 33)], "float32", columns_rows_columns), BARRIERS, device())
    for seed in range(3):
        x = draw((500, 33), "float32") * (seed + 1)
        run = kernel(x, seed=seed).check()
        np.testing.assert_allclose(run.outputs[0], np_columns_rows_columns(x.astype("float64")), rtol=2e-4)
        assert [launch.cooperative for launch in run.launches] == [True]


def test_a_barrier_left_out_is_a_race() -> None:
    kernel = GpuKernel(function([(500, 33)], "float32", columns_rows_columns), BARRIERS, device())
    first = kernel.source.index('extern "C" __global__')
    call = kernel.source.index(f"{GRID_BARRIER}(", first)
    cut = kernel.source[:call] + kernel.source[kernel.source.index(";", call) :]
    kernel.lowered = dataclasses.replace(kernel.lowered, sources=(cut,))
    assert "race" in {report.kind for report in kernel(draw((500, 33), "float32")).reports}


def test_more_blocks_than_the_device_holds_are_reported() -> None:
    kernel = GpuKernel(function([(500, 33)], "float32", columns_rows_columns), BARRIERS, device())
    run = kernel(draw((500, 33), "float32"), options=Options(resident_blocks=100))
    assert [report.kind for report in run.reports] == ["launch"]


def test_a_device_with_fewer_multiprocessors_is_refused_before_the_launch() -> None:
    """Also where host code is compiled without assertions, as that of stitch ops is."""
    for config in ({}, {"tir.disable_assert": True}):
        with tvm.transform.PassContext(opt_level=3, config=config):
            kernel = GpuKernel(function([(5000, 333)], "float32", columns_rows_columns), BARRIERS, device())
        with pytest.raises(RuntimeError, match="planned for a device with 132 multiprocessors"):
            kernel(draw((5000, 333), "float32"), options=Options(multiprocessors=100))


@needs_nvcc
def test_nvcc_compiles_barriers_under_their_launch_bound() -> None:
    kernel = GpuKernel(function([(500, 33)], "float32", columns_rows_columns), BARRIERS, device())
    bound = f"__launch_bounds__({kernel.plan.shared_grid.threads}, {kernel.plan.shared_grid.blocks_per_sm})"
    assert kernel.kernels.count(bound) == 2
    with fixed_cuda_source():
        tvm.build(kernel.func, target=default_target())


def test_nvrtc_compiles_barriers() -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    kernel = GpuKernel(function([(500, 33)], "float32", columns_rows_columns), BARRIERS, device())
    assert compile_with_nvrtc(kernel.source).startswith(b"\x7fELF")
