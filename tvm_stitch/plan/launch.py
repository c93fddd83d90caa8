# SPDX-License-Identifier: Apache-2.0
"""Resource-aware launches (AStitch 4.5): how many blocks a GPU holds at once, and the registers they may use.

The occupancy rules are those of NVIDIA's calculator for compute capabilities 7.0 to 9.0: registers are given out to
warps in units of 256, each from one of the four sub-partitions of an SM.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..device import DeviceModel

ASSUMED_REGISTERS = 32
"""Registers a thread that are assumed until the kernel is compiled (the paper's figure)."""

MAX_REGISTERS = 255
"""Registers that a thread can name."""

_REGISTER_UNIT = 256
_SUB_PARTITIONS = 4


def blocks_per_sm(device: DeviceModel, threads: int, registers: int, shared_bytes: int = 0) -> int:
    """Blocks that an SM holds at once; 0 when not even one fits.

    Args:
        device: a GPU.
        threads: threads a block.
        registers: 32-bit registers a thread, as the compiler reports them.
        shared_bytes: shared memory a block, static and dynamic.

    Raises:
        ValueError: for a device that is no GPU, or for numbers that no kernel can have.
    """
    _check(device, threads, registers, shared_bytes)
    if threads > device.max_threads_per_block or shared_bytes > device.shared_per_block:
        return 0
    warps = -(-threads // device.warp)
    by_warps = (device.threads_per_sm // device.warp) // warps
    limit = min(by_warps, device.max_blocks_per_sm)
    if registers:
        a_warp = _round_up(registers * device.warp, _REGISTER_UNIT)
        if a_warp * warps > device.registers_per_sm:
            return 0
        held = device.registers_per_sm // _SUB_PARTITIONS // a_warp * _SUB_PARTITIONS
        limit = min(limit, held // warps)
    a_block = _round_up(shared_bytes + device.shared_reserved, device.shared_unit)
    return min(limit, device.shared_per_sm // a_block) if a_block else limit


def blocks_per_wave(
    device: DeviceModel, threads: int, registers: int, shared_bytes: int = 0, cluster: int = 1
) -> int:
    """Blocks that the whole device holds at once: no kernel with a grid barrier may launch more.

    Blocks of a cluster run on the SMs of one graphics processing cluster: the count is that of whole clusters in
    those of ``device.gpc_sms`` SMs, which is a lower bound.

    Raises:
        ValueError: as ``blocks_per_sm``, and for a cluster that the device cannot launch.
    """
    if not 1 <= cluster <= device.max_cluster:
        raise ValueError(
            f"{device.name} launches clusters of 1 to {device.max_cluster} blocks, not {cluster}"
        )
    per_sm = blocks_per_sm(device, threads, registers, shared_bytes)
    if cluster == 1:
        return per_sm * device.sms
    return device.sms // device.gpc_sms * (device.gpc_sms * per_sm // cluster) * cluster


def most_registers(device: DeviceModel, threads: int, blocks: int, shared_bytes: int = 0) -> int:
    """The most registers a thread with which an SM still holds ``blocks`` blocks.

    Raises:
        ValueError: as ``blocks_per_sm``, and when an SM cannot hold as many blocks with any number of registers.
    """
    if blocks < 1:
        raise ValueError(f"an SM is to hold at least one block, not {blocks}")
    step = _REGISTER_UNIT // device.warp if device.warp else 1
    for registers in (MAX_REGISTERS, *range(MAX_REGISTERS // step * step, 0, -step)):
        if blocks_per_sm(device, threads, registers, shared_bytes) >= blocks:
            return registers
    raise ValueError(
        f"an SM of {device.name} does not hold {blocks} blocks of {threads} threads and {shared_bytes} bytes of "
        "shared memory: use smaller blocks, less shared memory, or ask for fewer"
    )


@dataclass(frozen=True)
class LaunchBounds:
    """What a kernel is compiled and launched under: each holds as long as the others do.

    ``registers`` is a bound for the compiler, not what it will use; with it an SM holds ``blocks_per_sm`` blocks of
    ``threads`` threads and ``shared_bytes`` bytes, and the device ``blocks_per_wave``.
    """

    device: DeviceModel
    threads: int
    shared_bytes: int
    cluster: int
    blocks_per_sm: int
    registers: int

    @property
    def blocks_per_wave(self) -> int:
        """Blocks that the device holds at once."""
        return blocks_per_wave(self.device, self.threads, self.registers, self.shared_bytes, self.cluster)

    def describe(self) -> dict[str, object]:
        """The bounds as plain data, for ``explain``."""
        return {
            "threads a block": self.threads,
            "shared memory a block": self.shared_bytes,
            "blocks an SM": self.blocks_per_sm,
            "blocks a wave": self.blocks_per_wave,
            "registers a thread at most": self.registers,
        }


def launch_bounds(
    device: DeviceModel,
    threads: int,
    shared_bytes: int = 0,
    registers: int = ASSUMED_REGISTERS,
    cluster: int = 1,
    blocks: int | None = None,
) -> LaunchBounds:
    """Assume ``registers`` a thread, count the blocks that an SM then holds, relax to the most that keeps the count.

    Args:
        device: a GPU.
        threads: threads a block, as planned.
        shared_bytes: shared memory a block, as planned.
        registers: what is assumed; more than the default where the plan keeps tiles in registers, which a bound too
            tight would spill.
        cluster: blocks a cluster.
        blocks: how many blocks an SM are wanted at most, where more would not help: fewer blocks leave more registers
            and a cheaper grid barrier.

    Raises:
        ValueError: when not one such block fits, or the device cannot launch such a cluster.
    """
    held = blocks_per_sm(device, threads, registers, shared_bytes)
    if not held:
        raise ValueError(
            f"an SM of {device.name} does not hold a block of {threads} threads with {registers} registers each and "
            f"{shared_bytes} bytes of shared memory: use smaller blocks or less shared memory"
        )
    if blocks is not None:
        held = min(held, blocks)
    bounds = LaunchBounds(
        device, threads, shared_bytes, cluster, held, most_registers(device, threads, held, shared_bytes)
    )
    if not bounds.blocks_per_wave:
        raise ValueError(f"{device.name} does not hold a cluster of {cluster} blocks of {threads} threads")
    return bounds


def _check(device: DeviceModel, threads: int, registers: int, shared_bytes: int) -> None:
    if not device.is_gpu:
        raise ValueError(f"{device.name} runs no blocks of threads")
    if threads < 1 or shared_bytes < 0:
        raise ValueError(f"no kernel has {threads} threads a block and {shared_bytes} bytes of shared memory")
    if not 0 <= registers <= MAX_REGISTERS:
        raise ValueError(f"a thread has 0 to {MAX_REGISTERS} registers, not {registers}")


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
