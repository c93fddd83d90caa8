# SPDX-License-Identifier: Apache-2.0
"""Estimate a scope before it is one: what kind of plan it would have, and how long its kernel would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..config import StitchConfig
from ..cost.sol import Load, Work, moving_seconds, seconds, share_of, tail_seconds
from ..device import DeviceModel
from ..graph.extent import is_static
from ..graph.ir import StitchGraph
from ..graph.sizes import static_size
from ..plan import heuristics
from ..plan.choose import choose
from ..plan.gpu.partition import Partition
from ..plan.gpu.uncoalesced import scattered_bytes
from ..plan.iteration.alignment import Alignment, Misaligned, align
from ..plan.iteration.index_space import IndexSpaces
from ..plan.memory import bytes_of, least_bytes
from ..plan.slices import Slice
from ..plan.strategies.transposed_loads import plan_crossed


@dataclass(frozen=True)
class KernelEstimate:
    """A scope as a kernel.

    ``grid``: it would have a grid-wide plan. ``seconds`` in all, of which data moves for ``moving``; for ``idle`` of
    them the last wave leaves room. ``scattered``: it would read or write across memory. All None where a shape is
    symbolic or the device is not a GPU: nothing is known.
    """

    grid: bool = False
    seconds: float | None = None
    moving: float | None = None
    idle: float = 0.0
    scattered: bool = False


FREE = KernelEstimate(False, 0.0, 0.0)
"""A view outside a kernel."""

Estimator = Callable[[StitchGraph], KernelEstimate]


def in_block(graph: StitchGraph, spaces: IndexSpaces | None = None) -> KernelEstimate:
    """Estimate a graph for one row domain, of which only the kind is told.

    Raises:
        Misaligned: when no domain serves it.
    """
    align(graph, spaces=spaces)
    return KernelEstimate()


def estimate_kernel(
    graph: StitchGraph, device: DeviceModel | None, config: StitchConfig, spaces: IndexSpaces | None = None
) -> KernelEstimate:
    """Estimate what ``choose_plan`` would make of a graph.

    Args:
        graph: the operators of a scope.
        device: what it is for; None, where that is not known, asks for one row domain.
        config: says whether there may be grid barriers.
        spaces: what was found of the same operators in other graphs, for one row domain.

    Raises:
        Misaligned: when there is no plan, with the reason.
    """
    if device is not None and not device.is_gpu:
        count = len(graph.operators)
        if graph.reduces and count > heuristics.CPU_OPERATORS_WITH_REDUCES:
            raise Misaligned(
                f"{count} operators, reductions among them, exceed a CPU's {heuristics.CPU_OPERATORS_WITH_REDUCES}"
            )
    if device is None or not device.is_gpu:
        return in_block(graph, spaces)
    found = choose(graph, device, config)
    if isinstance(found, Partition):
        return _grid_wide(found, device, device.cooperative and config.grid_barriers)
    return _one_domain(found, device)


def _one_domain(alignment: Alignment, device: DeviceModel) -> KernelEstimate:
    if not all(is_static(t.shape) for t in alignment.graph.tensors()):
        return KernelEstimate()
    scattered = scattered_bytes(alignment)
    if scattered and plan_crossed(alignment.graph, alignment, device) is not None:
        scattered = 0
    work = Work(((Load(static_size(least_bytes(alignment.graph)) + scattered),),))
    rows = 0 if alignment.domain.flat else int(alignment.domain.rows)
    moving, idle = moving_seconds(work, device), tail_seconds(work, rows, device)
    return KernelEstimate(False, seconds(work, device), moving, idle, scattered > 0)


def _grid_wide(found: Partition, device: DeviceModel, barriers: bool) -> KernelEstimate:
    scattered = {piece: scattered_bytes(piece.alignment) for pieces in found.phases for piece in pieces}
    phases = [[_load(piece, found, device, scattered[piece]) for piece in pieces] for pieces in found.phases]
    resident = barriers and (len(phases) > 1 or bool(found.crossing.shared))
    work = Work(phases, True, resident, barriers)
    across = any(scattered.values())
    return KernelEstimate(True, seconds(work, device), moving_seconds(work, device), scattered=across)


def _load(piece: Slice, found: Partition, device: DeviceModel, scattered: int) -> Load:
    partials = (bytes_of(found.crossing.partials[op]) for op in piece.cross_row)
    moved = static_size(sum([least_bytes(piece.graph), *partials])) + scattered
    if piece.replicated:
        return Load(moved, share_of(1, device))
    in_rows = any(op.is_reduce and op not in piece.cross_row for op in piece.roots)
    share = share_of(int(piece.domain.rows), device) if in_rows and not piece.domain.flat else 1.0
    return Load(moved, share)
