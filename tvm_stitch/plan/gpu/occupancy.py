# SPDX-License-Identifier: Apache-2.0
"""Resource-aware launches (AStitch 4.5): how many blocks a multiprocessor holds at once.

The occupancy rules are those of NVIDIA's calculator for compute capabilities 7.0 to 9.0. Registers are given out to
warps in units of 256, each from one of the four sub-partitions of an SM.
"""

from __future__ import annotations

from ...device import DeviceModel

MAX_REGISTERS = 255
"""The most registers of a thread: instructions can name no more."""
OPT_IN_BYTES = 48 * 1024
"""Shared memory of a block that every kernel may have, and the most static shared memory. A driver must be asked for
more. TVM's runtime asks only if dynamic shared memory alone exceeds the limit: it does not count static memory."""

_REGISTER_UNIT = 256
_SUB_PARTITIONS = 4


def blocks_per_sm(device: DeviceModel, threads: int, registers: int, shared_bytes: int = 0) -> int:
    """Return the number of blocks that an SM holds at once, 0 if not even one fits.

    Args:
        device: a GPU.
        threads: threads a block.
        registers: 32-bit registers a thread, as the compiler reports them.
        shared_bytes: shared memory a block, static and dynamic.

    Raises:
        ValueError: for a device that is not a GPU, or for numbers that no kernel can have.
    """
    _check(device, threads, registers, shared_bytes)
    if threads > device.max_threads_per_block:
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
    return min(limit, blocks_in_shared(device, a_block - device.shared_reserved))


def blocks_in_shared(device: DeviceModel, shared_bytes: int) -> int:
    """Return the number of blocks whose shared memory an SM holds, 0 if not even one fits.

    Other resources do not count.

    The bytes are not rounded to the steps in which shared memory is given out. ``blocks_per_sm`` rounds the bytes of
    a kernel, while plans pass an estimate of them here.

    Args:
        device: a GPU.
        shared_bytes: shared memory a block, static and dynamic, without the system's own.
    """
    if shared_bytes > device.shared_per_block:
        return 0
    a_block = shared_bytes + device.shared_reserved
    return device.shared_per_sm // a_block if a_block else device.max_blocks_per_sm


def _check(device: DeviceModel, threads: int, registers: int, shared_bytes: int) -> None:
    if not device.is_gpu:
        raise ValueError(f"{device.name} runs no blocks of threads")
    if threads < 1 or shared_bytes < 0:
        raise ValueError(f"no kernel has {threads} threads a block and {shared_bytes} bytes of shared memory")
    if not 0 <= registers <= MAX_REGISTERS:
        raise ValueError(f"a thread has 0 to {MAX_REGISTERS} registers, not {registers}")


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
