# SPDX-License-Identifier: Apache-2.0
"""Row plans on CUDA under a TVM with Relay, in the emulator."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

from cuda_emulator import default_target
from tests.relay.codegen.gpu_kernels import GpuKernel, check, function, needs_nvcc
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import device_model
from tvm_stitch.plan.gpu.mapping import CrossBlockReduction
from tvm_stitch.relay.cuda_source import compile_with_nvrtc, fixed_cuda_source

HALVES = ("float16", "bfloat16")


def softmax(x: Any) -> Any:
    return relay.nn.softmax(x)


def np_softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def add_layer_norm(x: Any, y: Any, scale: Any, shift: Any) -> Any:
    s = x + y
    centred = s - relay.mean(s, -1, keepdims=True)
    variance = relay.mean(centred * centred, -1, keepdims=True)
    return centred * relay.rsqrt(variance + relay.const(1e-5, "float32")) * scale + shift


def np_add_layer_norm(x: np.ndarray, y: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    s = x + y
    centred = s - s.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


@pytest.mark.parametrize(
    "shape",
    [(1, 1), (3, 7), (5, 100), (64, 768), (9, 1), (300, 3), (1, 4097), (2, 3, 33), (3, 30000), (2, 60001)],
    ids=str,
)
def test_softmax(shape: tuple[int, ...]) -> None:
    check([shape], "float32", softmax, np_softmax)


@pytest.mark.parametrize("shape", [(1, 1), (4, 50), (7, 768), (2, 12003)], ids=str)
def test_add_and_layer_norm(shape: tuple[int, int]) -> None:
    columns = shape[-1:]
    check([shape, shape, columns, columns], "float32", add_layer_norm, np_add_layer_norm)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (6, 1024)], ids=str)
def test_softmax_of_half_types(shape: tuple[int, int], dtype: str) -> None:
    check([shape], dtype, lambda x: relay.nn.softmax(x * x), lambda x: np_softmax(x * x))


@pytest.mark.parametrize("dtype", HALVES)
def test_casts_around_a_layer_norm(dtype: str) -> None:
    def body(*args: Any) -> Any:
        return relay.cast(add_layer_norm(*(relay.cast(a, "float32") for a in args)), dtype)

    check([(5, 96), (5, 96), (96,), (96,)], dtype, body, np_add_layer_norm)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool", "float16", "bfloat16", "float64"])
def test_casts_from(dtype: str) -> None:
    check(
        [(3, 65)], dtype, lambda x: relay.exp(relay.cast(x, "float32")), lambda x: np.exp(x.astype("float64"))
    )


@pytest.mark.parametrize(
    ("name", "op", "reference", "dtype"),
    [
        ("max", relay.max, np.max, "float32"),
        ("min", relay.min, np.min, "float16"),
        ("sum", relay.sum, np.sum, "int32"),
        ("prod", relay.prod, np.prod, "float32"),
        ("all", relay.all, np.all, "bool"),
        ("any", relay.any, np.any, "bool"),
    ],
)
@pytest.mark.parametrize("columns", [5, 32, 1000])
def test_reductions(name: str, op: Any, reference: Any, dtype: str, columns: int) -> None:
    scaled = relay.const(0.01, "float32")

    def body(x: Any) -> Any:
        return op(x * scaled + relay.const(1.0, "float32") if name == "prod" else x, -1)

    check([(6, columns)], dtype, body, lambda x: reference(x * 0.01 + 1 if name == "prod" else x, axis=-1))


def test_reductions_of_rows_that_are_not_innermost() -> None:
    check(
        [(4, 17, 9)],
        "float32",
        lambda x: relay.nn.softmax(x, 1),
        lambda x: np_softmax(x.swapaxes(1, 2)).swapaxes(1, 2),
    )


@pytest.mark.parametrize("columns", [12, 35])
def test_data_movement(columns: int) -> None:
    def body(x: Any, y: Any) -> Any:
        both = relay.concatenate([relay.tanh(x), relay.nn.pad(y, ((0, 0), (1, 2)))], 1)
        return relay.transpose(relay.strided_slice(both, [0, 2], [4, 2 * columns]), [1, 0])

    def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        both = np.concatenate([np.tanh(x), np.pad(y, ((0, 0), (1, 2)))], 1)
        return both[:, 2 : 2 * columns].T

    check([(4, columns), (4, columns)], "float32", body, reference)


def test_a_gather() -> None:
    def body(table: Any, index: Any) -> Any:
        return softmax(relay.take(table, index, 0, mode="clip"))

    check([(20, 50), (7,)], ["float32", "int32"], body, lambda t, i: np_softmax(t[np.clip(i, 0, 19)]))


def test_several_outputs() -> None:
    def body(x: Any) -> Any:
        mean = relay.mean(x, -1)
        return [mean, relay.exp(x - relay.expand_dims(mean, -1))]

    check([(5, 77)], "float32", body, lambda x: [x.mean(-1), np.exp(x - x.mean(-1, keepdims=True))])


def test_vectors_shuffles_and_registers() -> None:
    """A row of 256 floats is kept by one warp, two vectors a lane."""
    text = GpuKernel(function([(4096, 256)], "float32", softmax)).kernels
    assert len(re.findall(r"= \*\(float4\*\)\(a0 ", text)) == 2
    assert len(re.findall(r"\*\(float4\*\)\(T_softmax_norm ", text)) == 2
    assert text.count("__shfl_xor_sync") == 10
    assert "__shared__" not in text and "__syncthreads" not in text


def test_vectors_of_half_types_have_16_bytes() -> None:
    text = GpuKernel(function([(4096, 512)], "float16", softmax)).kernels
    assert len(re.findall(r"= \*\(uint4\*\)\(a0 ", text)) == 2


def test_plans_ask_for_no_launch_that_this_runtime_cannot_make() -> None:
    device = device_model(default_target())
    assert device.max_cluster == 1 and not device.cooperative
    plan = GpuKernel(
        function([(2, 60001)], "float32", softmax), StitchConfig(clusters=True, grid_barriers=True)
    ).plan
    assert plan.stage.mapping.exchange is CrossBlockReduction.NONE


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_nvrtc_compiles(dtype: str) -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    kernel = GpuKernel(function([(8, 512)], dtype, lambda x: relay.tanh(relay.nn.softmax(x * x))))
    assert compile_with_nvrtc(kernel.source, "sm_90").startswith(b"\x7fELF")


@needs_nvcc
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_stay_in_registers(dtype: str) -> None:
    """PTX has no local memory, and vectors of 16 bytes to and from memory."""
    from tvm.contrib.nvcc import compile_cuda

    kernel = GpuKernel(function([(4096, 768)], dtype, lambda x: relay.nn.softmax(x)))
    text = compile_cuda(kernel.source, "ptx", arch="sm_90").decode()
    assert ".local" not in text
    loads = re.findall(r"ld\.global(?:\.nc)?\.(\S*)", text)
    assert loads == ["v4.f32" if dtype == "float32" else "v4.u32"] * 2
    assert len(re.findall(r"st\.global\.v4", text)) == 2 and "st.global.f32" not in text


@needs_nvcc
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_nvcc_compiles(dtype: str) -> None:
    kernel = GpuKernel(function([(8, 512)], dtype, lambda x: relay.tanh(relay.nn.softmax(x * x))))
    with fixed_cuda_source():
        tvm.build(kernel.func, target=default_target())  # raises with nvcc's messages
