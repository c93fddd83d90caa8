# SPDX-License-Identifier: Apache-2.0
"""Interpreters of their own for the tests: what the toolchain does, it does when a process starts."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tvm_relay_toolchain

SOURCE = Path(tvm_relay_toolchain.__file__).parent.parent
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def has_driver() -> bool:
    """Return True if an NVIDIA driver is installed."""
    try:
        return not hasattr(ctypes.CDLL("libcuda.so.1"), "tvm_relay_toolchain_stub")
    except OSError:
        return False


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python code, in a new process with an empty environment and a cache folder of its own.

    The call's keywords are environment variables. ``flags`` are the interpreter's.
    """

    def start(code: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **variables}
        script = tmp_path / "script.py"
        script.write_text(code)
        command = [sys.executable, *flags, str(script)]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )

    return start


@pytest.fixture
def fake_tvm(tmp_path: Path) -> Callable[[bool], Path]:
    """Make a source tree of a TVM that does nothing, with or without Relay, and return its root."""

    def make(relay: bool) -> Path:
        package = tmp_path / "fake" / "python" / "tvm"
        (package / "_ffi").mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "_ffi" / "libinfo.py").write_text('__version__ = "0.99"\n')
        if relay:
            (package / "relay").mkdir()
            (package / "relay" / "__init__.py").write_text("")
        return tmp_path / "fake"

    return make
