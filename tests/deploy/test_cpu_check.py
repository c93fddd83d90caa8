# SPDX-License-Identifier: Apache-2.0
"""Libraries name what the CPU lacks, whoever loads them."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build
from tvm_stitch.deploy import cpu_check
from tvm_stitch.deploy.cpu_flags import missing_flags, needed_flags

X86 = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})
_PROPERTY = struct.Struct("<III")
_NEEDED, _V3_BIT, _UNKNOWN_BIT = 0xC0008002, 4, 0x10
"""GNU_PROPERTY_X86_ISA_1_NEEDED, the bit of x86-64-v3, and one that no CPU has."""

_LOAD = "import sys, tvm; tvm.runtime.load_module(sys.argv[1])"


@pytest.fixture(scope="module")
def executable() -> Any:
    return tvm_stitch.compile(build(lambda emit, x: R.nn.softmax(x, -1), ((8, 64), "float32")), X86)


def check_of(path: Path) -> Any:
    """Return the library's function, by TVM alone."""
    return tvm.runtime.load_module(str(path)).get_function(cpu_check.FUNCTION, query_imports=True)


@pytest.mark.parametrize(
    ("cpu", "level"),
    [("x86-64", ""), ("x86-64-v2", "x86-64-v2"), ("haswell", "x86-64-v3"), ("skylake-avx512", "x86-64-v4")],
)
def test_levels_of_cpus(cpu: str, level: str) -> None:
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": cpu})
    assert cpu_check.level(needed_flags(target)) == level


def test_another_architecture_has_no_check() -> None:
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    assert cpu_check.link_options(target) == {}


def test_a_cpu_with_all_features_passes(executable: Any, tmp_path: Path) -> None:
    if missing_flags(needed_flags(X86)):
        pytest.skip("needs AVX2")
    tvm_stitch.export_library(executable, tmp_path / "model.so", X86)
    assert check_of(tmp_path / "model.so")() is None


@pytest.mark.usefixtures("children_without_torch")
def test_missing_features_are_named(executable: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_check, "needed_flags", lambda _target: ["popcnt", "teleport", "time_travel"])
    path = tmp_path / "model.so"
    tvm_stitch.export_library(executable, path, X86)
    said = f"{re.escape(str(path))} does not run here: .* it lacks teleport time_travel; compile for"
    with pytest.raises(RuntimeError, match=said):
        check_of(path)()
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert re.search(said, done.stderr)


def test_the_systems_loader_refuses_a_level_that_the_cpu_lacks(executable: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    tvm_stitch.export_library(executable, path, X86)
    marked, mark = path.read_bytes(), _PROPERTY.pack(_NEEDED, 4, _V3_BIT)
    assert marked.count(mark) == 1
    newer = tmp_path / "newer.so"
    newer.write_bytes(marked.replace(mark, _PROPERTY.pack(_NEEDED, 4, _UNKNOWN_BIT)))
    with pytest.raises(RuntimeError, match="CPU ISA level is lower than required"):
        tvm.runtime.load_module(str(newer))


def test_a_library_is_linked_without_a_compiler_for_the_check(
    executable: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_flags: object) -> Path:
        raise RuntimeError("g++ was not found")

    monkeypatch.setattr(cpu_check, "check_object", refuse)
    tvm_stitch.export_library(executable, tmp_path / "model.so", X86)
    assert (tmp_path / "model.so").is_file() and "g++ was not found" in caplog.text
