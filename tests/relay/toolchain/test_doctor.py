# SPDX-License-Identifier: Apache-2.0
"""``python -m tvm_relay_toolchain`` and ``status``."""

from __future__ import annotations

import pytest

import tvm_relay_toolchain
from tvm_relay_toolchain import __main__ as doctor
from tvm_relay_toolchain import libraries

from .conftest import SOURCE, Run

DOCTOR = "import runpy; runpy.run_module('tvm_relay_toolchain', run_name='__main__')"


def test_status_of_this_environment() -> None:
    found = tvm_relay_toolchain.status()
    assert found.ok and found.hook and found.tvm is not None
    assert found.tvm.origin == "wheel" and found.tvm.version == "0.17.dev0" and found.tvm.has_relay
    assert set(found.cuda) == {"libcudart.so.12", "libnvrtc.so.12"}
    assert all(library is not None and library.path.is_file() for library in found.cuda.values())
    assert None not in found.packages.values()


def test_doctor_imports_tvm_and_exits_with_0(run: Run) -> None:
    done = run(DOCTOR)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0.17.dev0 with Relay, carried in the bitblas wheel" in done.stdout
    assert "works, in a worker process too: LLVM" in done.stdout
    assert "CUDA compiler NVRTC" in done.stdout  # PATH has no nvcc here


def test_doctor_names_what_is_missing_and_exits_with_1(run: Run) -> None:
    done = run(DOCTOR, "-S", PYTHONPATH=str(SOURCE))
    assert done.returncode == 1, done.stderr
    assert "error         no TVM with Relay\n" in done.stdout
    assert "-> pip install --no-deps bitblas==0.1.0.post1" in done.stdout
    assert "-> pip install cloudpickle" in done.stdout
    assert "note          no onnx: relay.frontend.from_onnx will not work" in done.stdout


def test_doctor_shows_why_the_import_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_PROBE", "raise SystemExit('the cause')")
    assert doctor.main([]) == 1
    assert "import        fails:\nthe cause" in capsys.readouterr().out


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        doctor.main(["surgeon"])
    assert stopped.value.code == 2


def test_a_missing_library_is_fatal_for_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "load", lambda soname: None)
    found = tvm_relay_toolchain.status()
    assert not found.ok
    assert {p.what for p in found.problems if p.fatal} == {"no libcudart.so.12", "no libnvrtc.so.12"}
