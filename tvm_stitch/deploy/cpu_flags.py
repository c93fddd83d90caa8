# SPDX-License-Identifier: Apache-2.0
"""CPU features that code for a target requires of the running machine, by Linux's names of them.

A library for a newer CPU than the machine's ends its process with an illegal instruction. The features are those of
x86 that code of kernels may use. For other architectures nothing is known.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm.target import Target

CPUINFO = Path("/proc/cpuinfo")

_FLAGS = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "popcnt": "popcnt",
    "movbe": "movbe",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avxvnni": "avx_vnni",
    "avxifma": "avx_ifma",
    "avx512f": "avx512f",
    "avx512cd": "avx512cd",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}
"""LLVM's names of features, with those of ``/proc/cpuinfo``."""


def needed_flags(target: Target) -> list[str]:
    """Return the CPU flags that code for a target may use, sorted. For a GPU, the host's CPU counts.

    Args:
        target: a TVM Target.
    """
    import tvm

    cpu = target if target.kind.name == "llvm" else target.host
    features = getattr(tvm.target.codegen, "llvm_get_cpu_features", None)
    if cpu is None or cpu.kind.name != "llvm" or features is None:
        return []
    triple = str(dict(cpu.attrs).get("mtriple") or "")
    if triple and not triple.startswith("x86_64"):
        return []
    return sorted({flag for name in features(cpu) if (flag := _FLAGS.get(str(name)))})


def missing_flags(needed: Iterable[str], cpuinfo: Path = CPUINFO) -> list[str]:
    """Return the flags that this machine's CPU lacks. The list is empty if that is unknown."""
    if platform.machine() != "x86_64" or not cpuinfo.is_file():
        return []
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            here = set(flags.split())
            return [flag for flag in needed if flag not in here]
    return []


def why_not_here(needed: Iterable[str], cpuinfo: Path = CPUINFO) -> str:
    """Return the reason why code with such flags does not run on this machine, and advice. It is "" if the code
    runs.
    """
    missing = missing_flags(needed, cpuinfo)
    if not missing:
        return ""
    return (
        f"this machine's CPU is older than the one it is compiled for: it lacks {', '.join(missing)}; "
        "compile for the oldest CPU that has to run it, such as --target 'llvm -mcpu=x86-64-v3', or for any, "
        "--target llvm"
    )
