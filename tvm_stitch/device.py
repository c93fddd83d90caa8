# SPDX-License-Identifier: Apache-2.0
"""DeviceModel: what plans and cost models need to know of a device."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import tvm

from . import compat
from .config import StitchConfig


@dataclass(frozen=True)
class DeviceModel:
    """Limits and peaks of a device.

    Sizes are bytes, bandwidth bytes a second. For a CPU ``sms`` is the number of cores, ``warp`` the SIMD lanes of
    float32, and the shared memory stands for the L1 data cache a task may fill.

    ``max_blocks_per_sm`` bounds resident blocks whatever they use; ``shared_reserved`` is what the system takes of the
    shared memory for each block, and ``shared_unit`` the step in which it is given out. ``max_cluster`` is the largest
    cluster that every kernel may ask for (1: no clusters), ``gpc_sms`` the SMs that are certain to share a graphics
    processing cluster, out of which a cluster must find its SMs. ``cooperative``: kernels may have grid barriers.
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
    max_blocks_per_sm: int = 1
    shared_reserved: int = 0
    shared_unit: int = 1
    max_cluster: int = 1
    gpc_sms: int = 0
    cooperative: bool = False

    @property
    def is_gpu(self) -> bool:
        """True for a device that runs blocks of threads."""
        return self.kind == "gpu"


def _gpu(
    name: str, arch: int, sms: int, block_kb: float, l2_mb: float, tbs: float, gpc_sms: int = 0
) -> DeviceModel:
    """A GPU of compute capability ``arch`` / 10, from which its limits follow."""
    turing = arch == 75
    sm_kb = {70: 96, 75: 64, 80: 164, 90: 228}[arch]
    return DeviceModel(
        name=name,
        kind="gpu",
        sms=sms,
        warp=32,
        max_threads_per_block=1024,
        threads_per_sm=1024 if turing else 2048,
        registers_per_sm=65536,
        shared_per_block=int(block_kb * 1024),
        shared_per_sm=sm_kb * 1024,
        l2_bytes=int(l2_mb * 2**20),
        bandwidth=tbs * 1e12,
        max_blocks_per_sm=16 if turing else 32,
        shared_reserved=1024 if arch >= 80 else 0,
        shared_unit=128 if arch >= 80 else 256,
        max_cluster=8 if arch >= 90 else 1,
        gpc_sms=gpc_sms,
        cooperative=True,
    )


GPUS: dict[str, DeviceModel] = {
    "h200": _gpu("h200", 90, 132, 227, 60, 4.8, gpc_sms=16),
    "h100": _gpu("h100", 90, 132, 227, 50, 3.35, gpc_sms=16),
    "a100": _gpu("a100", 80, 108, 163, 40, 2.0),
    "v100": _gpu("v100", 70, 80, 96, 6, 0.9),
    "t4": _gpu("t4", 75, 40, 64, 4, 0.32),
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


def device_model(target: Any, config: StitchConfig | None = None) -> DeviceModel:
    """The model of a target.

    A CUDA target's architecture picks the model; the shared-memory and thread limits that the target states
    (``max_shared_memory_per_block`` below the architecture's) are respected. Unknown architectures get the most
    conservative limits, and grid barriers only from compute capability 6.0 on. What the TVM that runs the kernels
    cannot ask a driver for (``compat.LAUNCHES_CLUSTERS``, ``compat.LAUNCHES_COOPERATIVELY``) the device does not have,
    but for grid barriers in plain launches where ``config`` asks for these. ``config`` may also leave the kernels fewer
    multiprocessors than the device has.
    """
    target = resolve_target(target)
    kind = str(target.kind.name)
    if kind in ("cuda", "rocm", "vulkan", "metal", "opencl"):
        attrs = dict(target.attrs)
        arch = str(attrs.get("arch", ""))
        if arch in _BY_ARCH:
            return _launchable(GPUS[_BY_ARCH[arch]], config)
        unknown = replace(GPUS["t4"], cooperative=kind == "cuda" and _capability(arch) >= 60)
        return _launchable(unknown, config)
    import os

    cores = int(os.environ.get("TVM_NUM_THREADS", os.cpu_count() or 1))
    return DeviceModel("cpu", "cpu", cores, 8, 1, 1, 0, 32 * 1024, 32 * 1024, 1 << 20, 20e9 * cores)


def _launchable(device: DeviceModel, config: StitchConfig | None) -> DeviceModel:
    """The device as the TVM at hand can launch kernels on it, and as far as the configuration gives it to them."""
    if config is not None and config.multiprocessors:
        device = replace(device, sms=min(device.sms, config.multiprocessors))
    if compat.LAUNCHES_CLUSTERS and compat.LAUNCHES_COOPERATIVELY:
        return device
    plain = config is not None and config.plain_launch_barriers
    return replace(
        device,
        max_cluster=device.max_cluster if compat.LAUNCHES_CLUSTERS else 1,
        cooperative=device.cooperative and (compat.LAUNCHES_COOPERATIVELY or plain),
    )


def _capability(arch: str) -> int:
    """Ten times the compute capability that an architecture such as ``"sm_90a"`` names, 0 for other names."""
    found = re.fullmatch(r"(?:sm|compute)_(\d+)[a-z]?", arch)
    return int(found[1]) if found else 0
