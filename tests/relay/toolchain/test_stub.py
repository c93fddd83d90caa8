# SPDX-License-Identifier: Apache-2.0
"""The stand-in for the driver's library."""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

import pytest

from tvm_relay_toolchain import libraries, stub
from tvm_relay_toolchain.errors import ToolchainError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tvm-relay-toolchain"


def test_every_function_returns_no_device(cache: Path) -> None:
    path = stub.ensure()
    assert path.is_relative_to(cache) and path.name == "libcuda.so.1"
    library = ctypes.CDLL(str(path), os.RTLD_NOW | os.RTLD_LOCAL)
    assert libraries.path_of(library) == path
    for name in stub.FUNCTIONS:
        assert getattr(library, name)() == 100, name
    assert not hasattr(library, "cuInit")


def test_the_stack_stays_not_executable(cache: Path) -> None:
    # A segment of this type lacks the flag X. Without the segment the loader makes the stack executable.
    content = stub.image()
    headers = [content[64 + 56 * i :][:8] for i in range(4)]
    (flags,) = [int.from_bytes(h[4:], "little") for h in headers if h[:4] == bytes.fromhex("51e57464")]
    assert flags & 1 == 0


def test_a_damaged_file_is_replaced_and_a_right_one_kept(cache: Path) -> None:
    path = stub.ensure()
    first = path.stat()
    assert stub.ensure() == path and path.stat().st_ino == first.st_ino
    path.write_bytes(b"half of it")
    assert stub.ensure() == path
    assert path.read_bytes() == stub.image()
    assert [f.name for f in path.parent.iterdir()] == ["libcuda.so.1"]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_without_a_cache_folder_it_is_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no/such/folder")
    monkeypatch.setattr(stub, "_temporary", None)
    path = stub.ensure()
    assert path.read_bytes() == stub.image() and not str(path).startswith("/proc")
    assert path.parent.stat().st_uid == os.getuid()


def test_another_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(ToolchainError, match=r"aarch64.*TVM_HOME"):
        stub.ensure()
