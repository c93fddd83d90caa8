# SPDX-License-Identifier: Apache-2.0
"""Libraries of executables that ran already: TVM warns of nothing when it loads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build
from tvm_stitch.deploy.scopes import without_empty_scopes

F32 = "float32"


def scaled() -> tvm.IRModule:
    """Return a module with a constant."""
    scales = relax.const(np.arange(8, dtype=F32))
    return build(lambda emit, x: R.multiply(x, scales), ((4, 8), F32))


def ran(executable: tvm.relax.VMExecutable) -> np.ndarray:
    x = tvm.runtime.tensor(np.ones((4, 8), F32))
    return relax.VirtualMachine(executable, tvm.cpu())["main"](x).numpy()


def test_a_library_written_after_a_call_loads_without_warnings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    executable = tvm_stitch.compile(scaled(), "llvm")
    expected = ran(executable)
    executable.save(tmp_path / "saved")
    tvm_stitch.export_library(executable, tmp_path / "model.so", "llvm")
    assert "Scope" not in capfd.readouterr().err
    for path in (tmp_path / "saved" / "model.so", tmp_path / "model.so"):
        loaded = tvm.relax.VMExecutable(tvm.runtime.load_module(str(path)))
        assert "Scope" not in capfd.readouterr().err, path
        np.testing.assert_array_equal(ran(loaded), expected)
    np.testing.assert_array_equal(ran(executable), expected)


def test_an_executable_without_scopes_is_the_same() -> None:
    executable = tvm_stitch.compile(scaled(), "llvm")
    assert without_empty_scopes(executable) is executable
    ran(executable)
    assert without_empty_scopes(executable) is not executable
