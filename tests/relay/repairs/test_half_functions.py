# SPDX-License-Identifier: Apache-2.0
"""Functions on float16 in CUDA C: TVM's names are those of CUDA's headers, the repaired ones are not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import tvm
from tvm import relay

from cuda_emulator import default_target
from tests.relay.repairs.stock_source import source
from tests.repairs.needed import needed
from tvm_stitch.repairs.relay.half_functions import own_half_functions


def of_tanh() -> str:
    """Return the CUDA C that TVM writes for a tanh of float16."""
    x = relay.var("x", shape=(8, 64), dtype="float16")
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.tanh(x)))
    return source(lambda: relay.build(mod, target=default_target()))


def is_compiled(code: str, folder: Path) -> bool:
    """Return whether nvcc takes CUDA C."""
    (folder / "kernels.cu").write_text(code)
    command = ["nvcc", "-arch=sm_90", "-cubin", "-o", folder / "kernels.cubin", folder / "kernels.cu"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc of CUDA 13.0 or later")
def test_fault(tmp_path: Path) -> None:
    needed(not is_compiled(of_tanh(), tmp_path), "relay/half_functions.py")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc of CUDA 13.0 or later")
def test_repair(tmp_path: Path) -> None:
    assert is_compiled(own_half_functions(of_tanh()), tmp_path)
    assert not is_compiled(of_tanh(), tmp_path)
