# SPDX-License-Identifier: Apache-2.0
"""DeviceModel: what plans and cost models need to know of a device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import tvm

from . import compat
from .config import StitchConfig
from .cost.choices import Choices
from .support.cores import threads
from .target import arch_of, capability_in, capability_of, resolve_target


@dataclass(frozen=True)
class DeviceModel:
    """Limits and peaks of a device.

    Sizes are bytes, bandwidth bytes a second. For a CPU ``sms`` is the number of cores, ``warp`` the SIMD lanes of
    float32, and the shared memory stands for the L1 data cache a task may fill.

    ``max_blocks_per_sm`` bounds resident blocks whatever they use; ``shared_reserved`` is what the system takes of the
    shared memory for each block, and ``shared_unit`` the step in which it is given out. ``max_cluster`` is the largest
    cluster that every kernel may ask for (1: no clusters), ``gpc_sms`` the SMs that are certain to share a graphics
    processing cluster, out of which a cluster must find its SMs. ``cooperative``: kernels may have grid barriers.
    ``background_copies``: threads may copy to shared memory without registers, and wait for it later.
    ``cache_policies``: loads may say how long the second-level cache keeps what they read.
    ``bfloat16_lanes`` are the most elements of bfloat16 that TVM moves as one vector. ``choices`` are the constants
    with which plans are chosen for the device.
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
    background_copies: bool = False
    cache_policies: bool = False
    bfloat16_lanes: int = 8
    choices: Choices = field(default=Choices(), repr=False)

    @property
    def is_gpu(self) -> bool:
        """True for a device that runs blocks of threads."""
        return self.kind == "gpu"

    def configured(self, config: StitchConfig) -> DeviceModel:
        """Return the device as plans may use it: it has no clusters where the configuration allows none."""
        return self if config.clusters or self.max_cluster == 1 else replace(self, max_cluster=1)

    def with_choices(self, **changes: Any) -> DeviceModel:
        """Return the device with other constants of choice, by the names of fields of ``Choices``."""
        return replace(self, choices=replace(self.choices, **changes))

    def clusters_at_once(self, sms: int) -> int:
        """Clusters of so many SMs that run at once, as far as is certain.

        A cluster finds its SMs in one graphics processing cluster, of which some chips have smaller ones: an H200's
        driver says 66, 39, 30, 22, 17, 15 and 15 clusters of 2, 3, ... 8 SMs, and each has SMs of its own up to there.
        """
        lost = SMALLER_GPCS * -(-SMS_LESS // sms)
        return max(1, self.sms // self.gpc_sms * (self.gpc_sms // sms) - lost)


SMALLER_GPCS, SMS_LESS = 3, 4
"""Graphics processing clusters of a chip that may be smaller than others, and by how many SMs."""


class _Capability(NamedTuple):
    """What a compute capability fixes: threads, blocks and kilobytes of shared memory of a multiprocessor."""

    threads: int
    blocks: int
    shared_kb: int


_CAPABILITIES = {
    70: _Capability(2048, 32, 96),
    75: _Capability(1024, 16, 64),
    80: _Capability(2048, 32, 164),
    86: _Capability(1536, 16, 100),
    87: _Capability(1536, 16, 164),
    89: _Capability(1536, 24, 100),
    90: _Capability(2048, 32, 228),
    100: _Capability(2048, 32, 228),
    120: _Capability(1536, 24, 100),
}
"""By ten times the compute capability (CUDA C++ Programming Guide, Compute Capabilities)."""


def _gpu(name: str, capability: int, sms: int, l2_mb: float, tbs: float, gpc_sms: int = 0) -> DeviceModel:
    """Return a GPU with ``sms`` multiprocessors, a second-level cache of ``l2_mb`` MiB, and memory of ``tbs`` TB/s."""
    limits = _CAPABILITIES[capability]
    reserved = 1024 if capability >= 80 else 0
    return DeviceModel(
        name=name,
        kind="gpu",
        sms=sms,
        warp=32,
        max_threads_per_block=1024,
        threads_per_sm=limits.threads,
        registers_per_sm=65536,
        shared_per_block=limits.shared_kb * 1024 - reserved,
        shared_per_sm=limits.shared_kb * 1024,
        l2_bytes=int(l2_mb * 2**20),
        bandwidth=tbs * 1e12,
        max_blocks_per_sm=limits.blocks,
        shared_reserved=reserved,
        shared_unit=128 if capability >= 80 else 256,
        max_cluster=8 if gpc_sms else 1,
        gpc_sms=gpc_sms,
        cooperative=True,
        background_copies=capability >= 80,
        cache_policies=capability >= 90,  # 8.0 has them too, where nothing was measured
        # Older ones lack it: TVM converts by vectors of as many 32-bit integers, of which it cannot write eight.
        bfloat16_lanes=8 if capability >= 80 else 4,
    )


# Compute capability, multiprocessors, MiB of second-level cache, TB/s of memory, multiprocessors that share clusters.
_FIGURES: dict[str, tuple[Any, ...]] = {
    "rtx5090": (120, 170, 96, 1.79),
    "b200": (100, 148, 126, 8.0),
    "h200": (90, 132, 60, 4.8, 16),
    "h100": (90, 132, 50, 3.35, 16),
    "rtx4090": (89, 128, 72, 1.01),
    "orin": (87, 16, 4, 0.2),
    "rtx3090": (86, 82, 6, 0.94),
    "a100": (80, 108, 40, 2.0),
    "t4": (75, 40, 4, 0.32),
    "v100": (70, 80, 6, 0.9),
}
GPUS: dict[str, DeviceModel] = {name: _gpu(name, *figures) for name, figures in _FIGURES.items()}
"""Datasheet figures; the peaks are leads to be measured, the limits are exact. Clusters only where they were tried."""

_BY_CAPABILITY = {103: "b200"} | {figures[0]: name for name, figures in reversed(_FIGURES.items())}
"""Of several devices of one capability the first."""


def device_model(target: Any, config: StitchConfig | None = None) -> DeviceModel:
    """Return the model of a target.

    A CUDA target's architecture picks the model, and the device of this machine its multiprocessors, if there is one
    of that architecture. Unknown architectures get the most conservative limits, and grid barriers only from compute
    capability 6.0 on. What the TVM that runs the kernels cannot ask a driver for (``compat.LAUNCHES_CLUSTERS``,
    ``compat.LAUNCHES_COOPERATIVELY``) the device does not have, but for grid barriers in plain launches where
    ``config`` asks for these. ``config`` may also say how many multiprocessors the kernels can count on.
    """
    target = resolve_target(target)
    kind = str(target.kind.name)
    if kind in ("cuda", "rocm", "vulkan", "metal", "opencl"):
        capability = capability_of(target) if kind == "cuda" else 0
        name = _BY_CAPABILITY.get(capability)
        model = GPUS[name] if name else replace(GPUS["t4"], name="unknown GPU", cooperative=capability >= 60)
        asked = config.multiprocessors if config is not None else 0
        sms = asked or _multiprocessors_here(capability) or model.sms
        return _launchable(replace(model, sms=sms) if sms != model.sms else model, config)
    cores = threads()
    return DeviceModel("cpu", "cpu", cores, 8, 1, 1, 0, 32 * 1024, 32 * 1024, 1 << 20, 20e9 * cores)


def _launchable(device: DeviceModel, config: StitchConfig | None) -> DeviceModel:
    """Return the device as the TVM at hand can launch kernels on it."""
    if compat.LAUNCHES_CLUSTERS and compat.LAUNCHES_COOPERATIVELY:
        return device
    plain = config is not None and config.plain_launch_barriers
    return replace(
        device,
        max_cluster=device.max_cluster if compat.LAUNCHES_CLUSTERS else 1,
        background_copies=device.background_copies and compat.COPIES_IN_BACKGROUND,
        cache_policies=device.cache_policies and compat.HINTS_CACHES,
        cooperative=device.cooperative and (compat.LAUNCHES_COOPERATIVELY or plain),
    )


def _multiprocessors_here(capability: int) -> int:
    """Multiprocessors of this machine's first CUDA device if it has that compute capability (times ten), else 0."""
    device = tvm.cuda(0)
    if not capability or not device.exist or capability_in(arch_of(device)) != capability:
        return 0
    return int(device.multi_processor_count)
