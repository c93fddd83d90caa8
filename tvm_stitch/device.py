# SPDX-License-Identifier: Apache-2.0
"""DeviceModel: what plans and cost models need to know of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm


@dataclass(frozen=True)
class DeviceModel:
    """Limits and peaks of a device.

    Sizes are bytes, bandwidth bytes a second. For a CPU ``sms`` is the number of cores, ``warp`` the SIMD lanes of
    float32, and the shared memory stands for the L1 data cache a task may fill.
    """

    name: str
    kind: str
    sms: int
    warp: int
    max_threads_per_block: int
    threads_per_sm: int
    registers_per_sm: int
    shared_per_block: int
    shared_per_sm: int
    l2_bytes: int
    bandwidth: float

    @property
    def is_gpu(self) -> bool:
        """True for a device that runs blocks of threads."""
        return self.kind == "gpu"


def _gpu(
    name: str, sms: int, threads: int, block_kb: float, sm_kb: float, l2_mb: float, tbs: float
) -> DeviceModel:
    return DeviceModel(
        name, "gpu", sms, 32, 1024, threads, 65536, int(block_kb * 1024), int(sm_kb * 1024),
        int(l2_mb * 2**20), tbs * 1e12,
    )  # fmt: skip


GPUS: dict[str, DeviceModel] = {
    "h200": _gpu("h200", 132, 2048, 227, 228, 60, 4.8),
    "h100": _gpu("h100", 132, 2048, 227, 228, 50, 3.35),
    "a100": _gpu("a100", 108, 2048, 163, 164, 40, 2.0),
    "v100": _gpu("v100", 80, 2048, 96, 96, 6, 0.9),
    "t4": _gpu("t4", 40, 1024, 64, 64, 4, 0.32),
}
"""Datasheet figures; the peaks are leads to be measured, the limits are exact."""

DEFAULT_ARCH = "sm_90"

_BY_ARCH = {"sm_90": "h200", "sm_90a": "h200", "sm_80": "a100", "sm_70": "v100", "sm_75": "t4"}


def resolve_target(target: Any) -> Any:
    """A TVM Target with a host, from a Target or what ``tvm.target.Target`` takes.

    ``"cuda"`` means the device of this machine, and ``DEFAULT_ARCH`` where there is none (TVM would assume an
    architecture too old for what current models need).
    """
    if target == "cuda" and not tvm.cuda(0).exist:
        target = {"kind": "cuda", "arch": DEFAULT_ARCH}
    if not isinstance(target, tvm.target.Target):
        target = tvm.target.Target(target)
    if "gpu" in target.keys and target.host is None:
        target = target.with_host(tvm.target.Target("llvm"))
    return target


def device_model(target: Any) -> DeviceModel:
    """The model of a target.

    A CUDA target's architecture picks the model; the shared-memory and thread limits that the target states
    (``max_shared_memory_per_block`` below the architecture's) are respected. Unknown architectures get the most
    conservative limits.
    """
    target = resolve_target(target)
    kind = str(target.kind.name)
    if kind in ("cuda", "rocm", "vulkan", "metal", "opencl"):
        attrs = dict(target.attrs)
        arch = str(attrs.get("arch", ""))
        return GPUS[_BY_ARCH.get(arch, "t4")]
    import os

    cores = int(os.environ.get("TVM_NUM_THREADS", os.cpu_count() or 1))
    return DeviceModel("cpu", "cpu", cores, 8, 1, 1, 0, 32 * 1024, 32 * 1024, 1 << 20, 20e9 * cores)
