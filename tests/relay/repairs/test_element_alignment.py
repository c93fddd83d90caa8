# SPDX-License-Identifier: Apache-2.0
"""CPU kernels on arguments that are aligned to their elements and to nothing more."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest
import tvm
from comparison.native import native_cpu
from tvm import relay
from tvm._ffi.runtime_ctypes import DataType, TVMArray
from tvm.script import tir as T

from tests.relay.codegen.kernels import Kernel, check
from tests.relay.modules import run_ahead_of_time
from tests.repairs.needed import needed
from tvm_stitch.repairs.relay.element_alignment import element_aligned

NATIVE = f"llvm -mcpu={native_cpu()}"


def sums(x: Any, y: Any) -> list[Any]:
    return [relay.tanh(x) * y, relay.sum(x * y, -1)]


class Shifted:
    """An array in memory that starts an element after an aligned address, which TVM's own arrays never do."""

    def __init__(self, array: np.ndarray):
        size = array.dtype.itemsize
        memory = np.zeros(array.nbytes + 128, np.uint8)
        first = -memory.ctypes.data % 64 + size
        self.array = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
        self.array[...] = array
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self._tensor = TVMArray(
            data=self.array.ctypes.data,
            device=tvm.cpu(),
            ndim=array.ndim,
            dtype=DataType(str(array.dtype)),
            shape=ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64)),
        )
        self.tensor = tvm.nd.NDArray(ctypes.pointer(self._tensor), is_view=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8"])
def test_arguments_are_as_aligned_as_their_elements(dtype: str) -> None:
    kernel = check([(64, 96), (96,)], dtype, lambda x, y: x * y + x, lambda x, y: x * y + x, target=NATIVE)
    for buffer in kernel.func.buffer_map.values():
        assert buffer.data_alignment == np.dtype(dtype).itemsize


@pytest.mark.parametrize("body", [sums, lambda x, y: [relay.nn.softmax(x + y)]], ids=["sums", "softmax"])
def test_vectors_at_any_address(body: Any) -> None:
    x, y = relay.var("x", shape=(64, 96)), relay.var("y", shape=(96,))
    kernel = Kernel(relay.Function([x, y], relay.Tuple(body(x, y))), NATIVE)
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(shape).astype("float32") for shape in ((64, 96), (96,))]
    expected = kernel(*inputs)
    moved = [Shifted(x) for x in (*inputs, *(np.full(out.shape, np.nan, out.dtype) for out in expected))]
    kernel.library["kernel"](*(place.tensor for place in moved))
    for place, want in zip(moved[len(inputs) :], expected, strict=True):
        np.testing.assert_array_equal(place.array, want)


def test_parameters_in_an_ahead_of_time_library(tmp_path: Any) -> None:
    """The AOT executor embeds them wherever the linker puts them."""
    from tvm_stitch.relay import enable

    x, scale, shift = (
        relay.var("x", shape=(48, 72)),
        relay.var("scale", shape=(72,)),
        relay.var("shift", shape=(72,)),
    )
    mod = tvm.IRModule.from_expr(relay.Function([x, scale, shift], relay.nn.layer_norm(x, scale, shift)))
    rng = np.random.default_rng(2)
    params = {name: rng.standard_normal(72).astype("float32") for name in ("scale", "shift")}
    data = rng.standard_normal((48, 72)).astype("float32")
    with enable() as recorder:
        lib = relay.build(mod, NATIVE, params=params, executor=relay.backend.Executor("aot"))
    assert len(recorder.plans) == 1
    (got,) = run_ahead_of_time(lib, tmp_path, data)
    wide = data.astype("float64")
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, expected * params["scale"] + params["shift"], atol=1e-5)


@T.prim_func
def doubled(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")) -> None:
    T.func_attr({"global_symbol": "doubled", "tir.noalias": True})
    for i in T.serial(8):
        for j in T.vectorized(8):
            y[i * 8 + j] = x[i * 8 + j] * T.float32(2)


def expects_alignment(func: Any) -> bool:
    """Return whether a kernel's machine code loads vectors from addresses that it takes to be aligned."""
    return (
        re.search(r"load <8 x float>.*align (32|64)", tvm.build(func, target=NATIVE).get_source("ll"))
        is not None
    )


def test_fault() -> None:
    needed(expects_alignment(doubled), "relay/element_alignment.py")


def test_repair() -> None:
    assert not expects_alignment(element_aligned(doubled))
    assert expects_alignment(doubled)
