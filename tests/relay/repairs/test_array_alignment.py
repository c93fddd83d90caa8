# SPDX-License-Identifier: Apache-2.0
"""Arrays in CUDA C that vectors are read from."""

from __future__ import annotations

import re

import tvm
from tvm.script import tir as T

from cuda_emulator import default_target
from tests.relay.repairs.stock_source import source
from tests.repairs.needed import needed
from tvm_stitch.repairs.relay.array_alignment import aligned_arrays


@T.prim_func
def through_shared(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")) -> None:
    T.func_attr({"global_symbol": "through_shared", "tir.noalias": True})
    shared = T.alloc_buffer((64,), scope="shared")
    for i in T.thread_binding(16, thread="threadIdx.x"):
        for v in T.vectorized(4):
            shared[i * 4 + v] = x[i * 4 + v]
        for v in T.vectorized(4):
            y[i * 4 + v] = shared[i * 4 + v] * T.float32(2)


def of_vectors() -> str:
    """Return the CUDA C that TVM writes for vectors in shared memory."""
    return source(lambda: tvm.build(through_shared, target=default_target()))


def is_unaligned(code: str) -> bool:
    """Return whether vectors are read from an array without an alignment."""
    (array,) = re.findall(r"^.*\bshared\w*\[\d+\];", code, re.MULTILINE)
    return "float4*)(shared" in code and "__align__" not in array


def test_fault() -> None:
    needed(is_unaligned(of_vectors()), "relay/array_alignment.py")


def test_repair() -> None:
    assert not is_unaligned(aligned_arrays(of_vectors()))
    assert is_unaligned(of_vectors())


def test_single_elements_stay() -> None:
    code = "  float x[1];\n  __shared__ float y[2];\n"
    assert aligned_arrays(code) == "  float x[1];\n  __shared__ __align__(16) float y[2];\n"
