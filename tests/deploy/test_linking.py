# SPDX-License-Identifier: Apache-2.0
"""Libraries that cannot be linked: told before the work where that can be known, and in one line."""

from __future__ import annotations

import platform
import stat
from pathlib import Path

import pytest
import tvm
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build
from tvm_stitch.deploy.linking import LinkError, check_linker, linking
from tvm_stitch.target import resolve_target

OTHER = "x86_64" if platform.machine() == "aarch64" else "aarch64"
LLVM = tvm.target.Target("llvm")


def compiler(folder: Path, says: str) -> str:
    """Write a compiler that fails."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\nexit 1\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    check_linker(LLVM)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LinkError, match=r"none is found: install g\+\+, or set CXX"):
        check_linker(LLVM)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(LinkError, match="there is no /no/such/compiler, which CXX or CC names"):
        check_linker(LLVM)


def test_another_machine_needs_a_compiler_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    target = resolve_target(f"llvm -mtriple={OTHER}-linux-gnu")
    with pytest.raises(LinkError, match=f"the library is for {OTHER}: set CXX .*{OTHER}-linux-gnu-g"):
        check_linker(target)
    monkeypatch.setenv("CXX", "g++")  # which may be one
    check_linker(target)


def test_what_a_linker_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = tvm_stitch.compile(build(lambda emit, x: R.nn.softmax(x, -1), ((8, 64), "float32")), LLVM)
    monkeypatch.setenv(
        "CXX", command := compiler(tmp_path, "In file a.o:\nld: error: no room\nld: error: more")
    )
    with pytest.raises(LinkError) as caught:
        tvm_stitch.export_library(executable, tmp_path / "model.so", LLVM)
    assert (
        str(caught.value) == f"model.so cannot be linked by {command} (CXX names another): ld: error: no room"
    )
    assert not (tmp_path / "model.so").exists()


def test_other_failures_are_passed_on() -> None:
    with pytest.raises(RuntimeError, match="^something else$") as caught, linking(Path("model.so")):
        raise RuntimeError("something else")
    assert not isinstance(caught.value, LinkError)
