# SPDX-License-Identifier: Apache-2.0
"""The TVM target of this machine's CPU or GPU, under every supported TVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm

from tvm_stitch import compat
from tvm_stitch.support.cores import processors
from tvm_stitch.target import arch_of

#: LLVM's names of processors by the features that they imply, the most able first: for an LLVM older than the CPU.
_BY_FEATURES = (
    ({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}, "skylake-avx512"),
    ({"avx2", "fma", "bmi2"}, "haswell"),
    ({"avx"}, "sandybridge"),
)


def native_cpu() -> str:
    """Return LLVM's name for this CPU. If it has none, return the most capable known CPU with these features."""
    name = str(tvm.target.codegen.llvm_get_system_cpu())
    if name != "generic":
        return name
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return name
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    return next((known for needed, known in _BY_FEATURES if needed <= flags), name)


def target_of(spec: str) -> Any:
    """Return this CPU for ``"llvm"`` and this machine's GPU for ``"cuda"``.

    Pass anything else to ``tvm.target.Target``.

    Raises:
        ValueError: for CUDA without a device, since a comparison runs what it builds.
    """
    host: dict[str, Any] = {"kind": "llvm", "mcpu": native_cpu()}
    if not compat.HAS_RELAY:
        host["num-cores"] = processors()  # MetaSchedule asks for it
    if spec == "llvm":
        return tvm.target.Target(host)
    target = None if spec == "cuda" else tvm.target.Target(spec)
    if target is not None and target.kind.name != "cuda":
        return target
    device = tvm.cuda(0)
    if not device.exist:
        raise ValueError("no CUDA device was found: a comparison runs what it builds; use --target llvm here")
    if target is None:
        target = tvm.target.Target(
            {
                "kind": "cuda",
                "arch": arch_of(device),
                "max_threads_per_block": int(device.max_threads_per_block),
                "max_shared_memory_per_block": int(device.max_shared_memory_per_block),
                "thread_warp_size": int(device.warp_size),
                "registers_per_block": 65536,
            }
        )
    return tvm.target.Target(target, host=tvm.target.Target(host))


def device_of(target: Any) -> Any:
    """Return the device that the target's code runs on."""
    return tvm.cuda(0) if target.kind.name == "cuda" else tvm.cpu(0)


def device_name(target: Any) -> str:
    """Return the GPU's name, empty for a CPU."""
    return str(tvm.cuda(0).device_name) if target.kind.name == "cuda" else ""
