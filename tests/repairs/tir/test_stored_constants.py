# SPDX-License-Identifier: Apache-2.0
"""Kernels for GPUs without bfloat16 store constants of that type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.relax import op as R
from tvm.script import tirx as T

from cuda_emulator import lower, run_lowered
from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.lowering import host_and_devices

OLD = tvm.target.Target({"kind": "cuda", "arch": "sm_75"}, host="llvm")
ADDRESS_OF_A_CONSTANT = "(&(0x"


def compiled() -> Any:
    """Build a kernel whose threads past the end of a row hold a constant."""
    n = symbol()
    mod = build(lambda emit, x: R.nn.log_softmax(x, -1), ((1, n, n), "bfloat16"))
    return lower(mod, OLD, pipeline(OLD))


def test_threads_past_the_end_of_a_row_hold_a_constant() -> None:
    x = np.random.default_rng(0).standard_normal((1, 7, 7)).astype(ml_dtypes.bfloat16)
    result = run_lowered(compiled(), [x])
    assert not result.reports
    wide = x.astype(np.float64)
    wanted = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    np.testing.assert_allclose(result.outputs[0].astype(np.float64), wanted, rtol=1e-2)


@T.prim_func(s_tir=True)
def ones(y: T.Buffer((64,), "bfloat16")):
    with T.sblock("root"):
        block = T.launch_thread("blockIdx.x", T.int64(2))
        thread = T.launch_thread("threadIdx.x", T.int64(32))
        y[block * 32 + thread] = T.bfloat16(1)


def test_fault() -> None:
    mod = tvm.IRModule({"main": ones.with_attr("global_symbol", "main")})
    kernels = str(host_and_devices(mod, OLD)[1])
    faults.needed('T.reinterpret("uint32", T.float32(1' in kernels, "tir/stored_constants.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ADDRESS_OF_A_CONSTANT not in compiled().source
    monkeypatch.setattr(faults.module_of("codegen.emit"), "opaque_stored_constants", lambda func: func)
    assert ADDRESS_OF_A_CONSTANT in compiled().source
