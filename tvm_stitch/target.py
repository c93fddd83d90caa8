# SPDX-License-Identifier: Apache-2.0
"""Targets: TVM's, made from what users give, checked where TVM would go on with a wrong one."""

from __future__ import annotations

import difflib
import re
from typing import Any

import tvm

DEFAULT_ARCH = "sm_90"

_ARCHITECTURE = re.compile(r"(?:sm|compute)_(\d+)[a-z]?")
_OTHER_NAMES = {"amd64": "x86_64", "arm64": "aarch64", "i486": "i386", "i586": "i386", "i686": "i386"}
"""Architectures in a triple that LLVM's targets have another name for."""


def resolve_target(target: Any) -> Any:
    """A TVM Target with a host, from a Target or what ``tvm.target.Target`` takes.

    ``"cuda"`` means the device of this machine, and ``DEFAULT_ARCH`` where there is none (TVM would assume an
    architecture too old for what current models need).

    Raises:
        ValueError: for a CUDA architecture that is none, and for a CPU that LLVM does not know: LLVM would compile
            for its baseline instead.
    """
    if target == "cuda" and not tvm.cuda(0).exist:
        target = {"kind": "cuda", "arch": DEFAULT_ARCH}
    if not isinstance(target, tvm.target.Target):
        target = tvm.target.Target(target)
    if "gpu" in target.keys and target.host is None:
        target = target.with_host(tvm.target.Target("llvm"))
    for each in (target, target.host):
        if each is not None:
            _check(each)
    return target


def arch_of(device: Any) -> str:
    """The architecture of a CUDA device that is present, such as ``"sm_90"``."""
    return "sm_" + "".join(str(device.compute_version).split(".")[:2])


def capability_of(target: Any) -> int:
    """Ten times the compute capability of a CUDA target, 0 where its architecture names none."""
    return capability_in(str(dict(target.attrs).get("arch", "")))


def capability_in(arch: str) -> int:
    """Ten times the compute capability that an architecture such as ``"sm_90a"`` names, 0 for other names."""
    found = _ARCHITECTURE.fullmatch(arch)
    return int(found[1]) if found else 0


def _check(target: Any) -> None:
    attributes = dict(target.attrs)
    if target.kind.name == "cuda":
        arch = str(attributes.get("arch") or DEFAULT_ARCH)
        if not _ARCHITECTURE.fullmatch(arch):
            raise ValueError(f"{arch!r} is no CUDA architecture; give one such as {DEFAULT_ARCH}")
    elif target.kind.name == "llvm" and attributes.get("mcpu"):
        cpu, triple = str(attributes["mcpu"]), str(attributes.get("mtriple") or "")
        known = _cpus(triple)
        if known and cpu not in known and not _is_another_name(cpu, triple):
            near = difflib.get_close_matches(cpu, known, 3) or [_own_cpu(known)]
            where = f" of {triple}" if triple else ""
            raise ValueError(f"LLVM knows no CPU {cpu!r}{where}; did you mean {' or '.join(near)}?")


def _is_another_name(cpu: str, triple: str) -> bool:
    """True for names that LLVM takes and lists under another one, such as apple-m1, where TVM can tell."""
    codegen = tvm.target.codegen
    is_valid = getattr(codegen, "llvm_is_valid_cpu", lambda *_: False)
    return bool(is_valid(cpu, triple or codegen.llvm_get_system_triple()))


def _own_cpu(known: list[str]) -> str:
    own = str(tvm.target.codegen.llvm_get_system_cpu())
    return own if own in known else "generic"


def _cpus(triple: str) -> list[str]:
    """The CPUs that TVM's LLVM knows for a triple ("": this machine's), none where it is not certain."""
    from tvm.target import codegen

    # LLVM crashes when asked about an architecture that it has no code for.
    arch = triple.split("-", 1)[0]
    arch = _OTHER_NAMES.get(arch, arch)
    if arch and arch not in map(str, codegen.llvm_get_targets()):
        return []
    spec = {"kind": "llvm", "mtriple": triple} if triple else {"kind": "llvm"}
    return sorted(map(str, codegen.llvm_get_cpu_archlist(tvm.target.Target(spec))))
