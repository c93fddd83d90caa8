# SPDX-License-Identifier: Apache-2.0
"""Estimate a scope before it is merged: the kind of its plan, and the time of its kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..config import StitchConfig
from ..cost.choices import Choices
from ..cost.sol import Load, Work, moving_seconds, seconds, share_of, tail_seconds
from ..device import DeviceModel
from ..graph.extent import is_static
from ..graph.ir import StitchGraph
from ..graph.sizes import static_size
from ..plan.choose import choose
from ..plan.gpu.phases.partition import Partition
from ..plan.gpu.uncoalesced import uncoalesced_bytes
from ..plan.in_block import turns_transposed
from ..plan.iteration.alignment import Alignment, Misaligned, align
from ..plan.iteration.index_space import IndexSpaces
from ..plan.memory import bytes_of, least_bytes
from ..plan.slices import Slice


@dataclass(frozen=True)
class KernelEstimate:
    """The estimate of a scope as one kernel.

    Times are None if a shape is symbolic or the device is not a GPU.

    Attributes:
        grid: whether it would have a grid-wide plan.
        seconds: time of the kernel.
        moving: seconds of it in which data moves.
        idle: seconds of it in which the last wave leaves part of the device idle.
        uncoalesced: whether it would read or write uncoalesced.
    """

    grid: bool = False
    seconds: float | None = None
    moving: float | None = None
    idle: float = 0.0
    uncoalesced: bool = False


FREE = KernelEstimate(False, 0.0, 0.0)
"""The estimate of a view outside a kernel."""

Estimator = Callable[[StitchGraph], KernelEstimate]


def in_block(graph: StitchGraph, choices: Choices, spaces: IndexSpaces | None = None) -> KernelEstimate:
    """Estimate a graph for one row domain. Only the kind of plan is known, no times.

    Raises:
        Misaligned: if no row domain fits.
    """
    align(graph, choices, spaces=spaces)
    return KernelEstimate()


def estimate_kernel(
    graph: StitchGraph, device: DeviceModel, config: StitchConfig, spaces: IndexSpaces | None = None
) -> KernelEstimate:
    """Estimate the plan that ``choose_plan`` would choose for a graph.

    Args:
        graph: the operators of a scope.
        device: the device that the kernel is for.
        config: says whether grid barriers are allowed.
        spaces: index spaces found for the same operators in other graphs, for one row domain.

    Raises:
        Misaligned: if there is no plan, with the reason.
    """
    if not device.is_gpu:
        count, most = len(graph.operators), device.choices.cpu_operators_with_reduces
        if graph.reduces and count > most:
            raise Misaligned(f"{count} operators, reductions among them, exceed a CPU's {most}")
        return in_block(graph, device.choices, spaces)
    plan = choose(graph, device, config)
    if isinstance(plan, Partition):
        return _grid_wide(plan, device, device.cooperative and config.grid_barriers)
    return _one_domain(plan, device, config)


def _one_domain(alignment: Alignment, device: DeviceModel, config: StitchConfig) -> KernelEstimate:
    if not all(is_static(t.shape) for t in alignment.graph.tensors()):
        return KernelEstimate()
    uncoalesced = uncoalesced_bytes(alignment)
    if uncoalesced and turns_transposed(alignment, device, config):
        uncoalesced = 0
    work = Work(((Load(static_size(least_bytes(alignment.graph)) + uncoalesced),),))
    rows = 0 if alignment.domain.flat else int(alignment.domain.rows)
    moving, idle = moving_seconds(work, device), tail_seconds(work, rows, device)
    return KernelEstimate(False, seconds(work, device), moving, idle, uncoalesced > 0)


def _grid_wide(partition: Partition, device: DeviceModel, barriers: bool) -> KernelEstimate:
    uncoalesced = {
        piece: uncoalesced_bytes(piece.alignment) for pieces in partition.phases for piece in pieces
    }
    phases = [
        [_load(piece, partition, device, uncoalesced[piece]) for piece in pieces]
        for pieces in partition.phases
    ]
    resident = barriers and (len(phases) > 1 or bool(partition.crossing.shared))
    work = Work(phases, True, resident, barriers)
    across = any(uncoalesced.values())
    return KernelEstimate(True, seconds(work, device), moving_seconds(work, device), uncoalesced=across)


def _load(piece: Slice, partition: Partition, device: DeviceModel, uncoalesced: int) -> Load:
    partials = (bytes_of(partition.crossing.partials[op]) for op in piece.cross_row)
    moved = static_size(sum([least_bytes(piece.graph), *partials])) + uncoalesced
    if piece.replicated:
        return Load(moved, share_of(1, device))
    in_rows = any(op.is_reduce and op not in piece.cross_row for op in piece.roots)
    share = share_of(int(piece.domain.rows), device) if in_rows and not piece.domain.flat else 1.0
    return Load(moved, share)
