# SPDX-License-Identifier: Apache-2.0
"""Constants that are given by their bits, in CUDA C."""

from __future__ import annotations

import pytest
import tvm
from tvm.script import tir as T

from cuda_emulator import default_target
from tests.relay.repairs.stock_source import source
from tests.repairs.needed import needed
from tvm_stitch.relay.cuda_source import compile_with_nvrtc
from tvm_stitch.repairs.relay.constant_addresses import without_constant_addresses


@T.prim_func
def third(y: T.Buffer((32,), "float32")) -> None:
    T.func_attr({"global_symbol": "third", "tir.noalias": True})
    for i in T.thread_binding(32, thread="threadIdx.x"):
        y[i] = T.reinterpret("float32", T.int32(1051372203))


def of_third() -> str:
    """Return the CUDA C that TVM writes for a constant that is given by its bits."""
    return source(lambda: tvm.build(third, target=default_target()))


def is_compiled(code: str) -> bool:
    """Return whether NVRTC takes CUDA C."""
    try:
        return bool(compile_with_nvrtc(code))
    except RuntimeError:
        return False


def test_fault() -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    needed(not is_compiled(of_third()), "relay/constant_addresses.py")


def test_repair() -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    assert is_compiled(without_constant_addresses(of_third()))
    assert not is_compiled(of_third())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(*(float *)(&(-7)))", "__int_as_float(-7)"), ("(*(double *)(&(5LL)))", "__longlong_as_double(5)"),
        ("(*(float *)(&(x)))", "(*(float *)(&(x)))"),
    ],
)  # fmt: skip
def test_rewritten_text(before: str, after: str) -> None:
    assert without_constant_addresses(f"y = {before};") == f"y = {after};"
