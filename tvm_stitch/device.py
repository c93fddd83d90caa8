# SPDX-License-Identifier: Apache-2.0
"""The device model: the facts about a device that plans and cost models use."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import tvm

from . import compat
from .config import StitchConfig
from .cost.choices import Choices
from .support.cores import threads
from .target import arch_of, capability_in, capability_of, multiplies_bfloat16, resolve_target, vectors_of


@dataclass(frozen=True)
class DeviceModel:
    """Limits and peaks of a device.

    Sizes are bytes, bandwidth bytes per second. For a CPU ``sms`` is the number of cores, and ``warp`` the SIMD
    lanes of float32. The shared memory then means the L1 data cache that a task may fill.

    ``max_blocks_per_sm`` bounds resident blocks whatever they use. ``shared_reserved`` is the system's share of
    shared memory for each block, and ``shared_unit`` the granularity of its allocation. ``max_cluster`` is the
    largest cluster that every kernel may request (1: no clusters). A cluster takes its SMs from one graphics
    processing cluster, of which ``gpc_sms`` SMs are certain. ``cooperative``: kernels may have grid barriers.
    ``dependent_launches``: a kernel may begin while the kernel in front ends.
    ``background_copies``: threads may copy to shared memory without registers, and wait for it later.
    ``cache_policies``: loads may say how long the second-level cache keeps their data.
    ``matrix_units``: warps multiply matrices of float16 and bfloat16. ``bfloat16_lanes`` is the
    most elements of bfloat16 that TVM moves as one vector. A CPU has ``vector_registers`` of ``vector_lanes`` elements
    of float32. ``multiplies_pairs``: a CPU has an instruction for pairs of bfloat16. ``choices`` are the constants of
    choice of plans for the device.
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
    dependent_launches: bool = False
    background_copies: bool = False
    cache_policies: bool = False
    matrix_units: bool = False
    bfloat16_lanes: int = 8
    vector_lanes: int = 8
    vector_registers: int = 16
    multiplies_pairs: bool = False
    choices: Choices = field(default=Choices(), repr=False)

    @property
    def is_gpu(self) -> bool:
        """True for a device that runs blocks of threads."""
        return self.kind == "gpu"

    def configured(self, config: StitchConfig) -> DeviceModel:
        """Return the device without clusters if the configuration does not allow them, else the device."""
        return self if config.clusters or self.max_cluster == 1 else replace(self, max_cluster=1)

    def with_choices(self, **changes: Any) -> DeviceModel:
        """Return the device with other constants of choice, by the names of fields of ``Choices``."""
        return replace(self, choices=replace(self.choices, **changes))

    def clusters_at_once(self, sms: int) -> int:
        """Return the number of clusters of ``sms`` SMs that certainly run at once.

        A cluster takes its SMs from one graphics processing cluster, and some chips have smaller ones. An H200's
        driver reports 66, 39, 30, 22, 17, 15 and 15 clusters of 2, 3, ... 8 SMs. Up to these numbers, no two
        clusters share an SM.
        """
        lost = SMALLER_GPCS * -(-SMS_LESS // sms)
        return max(1, self.sms // self.gpc_sms * (self.gpc_sms // sms) - lost)


SMALLER_GPCS, SMS_LESS = 3, 4
"""Graphics processing clusters of a chip that may be smaller than others, and by how many SMs."""


class _Capability(NamedTuple):
    """Limits of a multiprocessor by compute capability: threads, blocks and kilobytes of shared memory."""

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
"""Limits by ten times the compute capability (CUDA C++ Programming Guide, Compute Capabilities)."""


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
        dependent_launches=capability >= 90,
        background_copies=capability >= 80,
        cache_policies=capability >= 90,  # 8.0 has them too, but nothing was measured there
        # Older ones lack it: TVM converts through vectors of as many 32-bit integers, and cannot write eight of
        # those.
        matrix_units=capability >= 80,  # bfloat16
        bfloat16_lanes=8 if capability >= 80 else 4,
    )


# Compute capability, multiprocessors, MiB of second-level cache, TB/s of memory, multiprocessors that share
# clusters.
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
"""Datasheet figures. Peaks are estimates to be measured, limits are exact. Clusters are listed only if they were
tested.
"""

_BY_CAPABILITY = {103: "b200"} | {figures[0]: name for name, figures in reversed(_FIGURES.items())}
"""Name of the first device of each compute capability."""


def device_model(target: Any, config: StitchConfig | None = None) -> DeviceModel:
    """Return the model of a target.

    A CUDA target's architecture selects the model. The number of multiprocessors is that of this machine's device
    if it has the same architecture. Unknown architectures get the most conservative limits, and grid barriers only
    from compute capability 6.0 on. The device lacks launches that its TVM cannot request
    (``compat.LAUNCHES_CLUSTERS``, ``compat.LAUNCHES_COOPERATIVELY``). The exception is grid barriers in plain
    launches, if ``config`` allows them. ``config`` may also set the number of multiprocessors that kernels can
    count on.
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
    lanes, registers = vectors_of(target) if kind == "llvm" else (8, 16)
    return DeviceModel(
        "cpu", "cpu", cores, 8, 1, 1, 0, 32 * 1024, 32 * 1024, 1 << 20, 20e9 * cores,
        vector_lanes=lanes, vector_registers=registers,
        multiplies_pairs=kind == "llvm" and multiplies_bfloat16(target),
    )  # fmt: skip


def _launchable(device: DeviceModel, config: StitchConfig | None) -> DeviceModel:
    """Return the device with the launches that the installed TVM supports."""
    if compat.LAUNCHES_CLUSTERS and compat.LAUNCHES_COOPERATIVELY:
        return device
    plain = config is not None and config.plain_launch_barriers
    return replace(
        device,
        max_cluster=device.max_cluster if compat.LAUNCHES_CLUSTERS else 1,
        background_copies=device.background_copies and compat.COPIES_IN_BACKGROUND,
        cache_policies=device.cache_policies and compat.HINTS_CACHES,
        matrix_units=device.matrix_units and compat.DECLARES_DEVICE_FUNCTIONS,
        dependent_launches=device.dependent_launches and compat.LAUNCHES_DEPENDENTLY,
        cooperative=device.cooperative and (compat.LAUNCHES_COOPERATIVELY or plain),
    )


def _multiprocessors_here(capability: int) -> int:
    """Return the multiprocessors of this machine's first CUDA device if it has this capability (times ten), else 0."""
    device = tvm.cuda(0)
    if not capability or not device.exist or capability_in(arch_of(device)) != capability:
        return 0
    return int(device.multi_processor_count)
