# SPDX-License-Identifier: Apache-2.0
"""The instructions that code for a CPU needs are compared with those of this machine."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import tvm

from tvm_stitch.deploy.cpu_flags import missing_flags, needed_flags, why_not_here
from tvm_stitch.target import resolve_target

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="flags are those of x86")


def flags(target: str) -> set[str]:
    return set(needed_flags(resolve_target(target)))


def test_newer_cpus_need_more() -> None:
    baseline, v3 = flags("llvm -mcpu=x86-64"), flags("llvm -mcpu=x86-64-v3")
    assert baseline == flags("llvm") == set()
    assert {"avx2", "fma", "f16c", "bmi2"} <= v3 and "avx512f" not in v3
    assert flags("llvm -mcpu=skylake-avx512") - v3 >= {"avx512f", "avx512bw", "avx512vl"}
    assert flags("llvm -mcpu=x86-64 -mattr=+avx2") >= {"avx2", "avx"}


def test_other_devices_and_machines() -> None:
    assert flags("cuda -arch=sm_90") == set()
    host = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm", "mcpu": "x86-64-v3"}})
    assert "avx2" in needed_flags(host)
    assert flags("llvm -mtriple=aarch64-linux-gnu") == set()


def test_what_is_missing(tmp_path: Path) -> None:
    older = tmp_path / "cpuinfo"
    older.write_text(
        "processor\t: 0\nmodel name\t: x\nflags\t\t: fpu sse sse2 pni avx avx2 fma\n\nprocessor\t: 1\n"
    )
    assert missing_flags(["avx2", "avx512f", "fma"], older) == ["avx512f"]
    assert missing_flags(["avx512f"], tmp_path / "none") == []
    reason = why_not_here(["avx512bw", "avx512f"], older)
    assert "lacks avx512bw, avx512f;" in reason and "--target llvm" in reason
    assert why_not_here(["avx2"], older) == "" == why_not_here([])


def test_this_machine_has_what_native_code_needs() -> None:
    """LLVM's name of this CPU decides the instructions of native code. If the CPU lacks one, nothing would run."""
    assert missing_flags(flags("native")) == []
