# SPDX-License-Identifier: Apache-2.0
"""Choose the kind of plan: one row domain, or phases of stages with grid barriers between them.

Where grid barriers are not to be had, the phases become kernels, one after the other: the same plan without the
barrier. Against stitch ops that end where rows would cross, it has about as many launches, but a value is read once for
all that a phase makes of it (half the traffic for the gradients of layer norm), and sums across rows are read row by
row, on all blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..config import StitchConfig
from ..device import DeviceModel
from ..graph.ir import StitchGraph
from . import heuristics
from .gpu.grid import make_grid_plan
from .gpu.partition import wants_partition
from .in_block import plan_in_block
from .iteration.alignment import Misaligned
from .kernel import KernelPlan
from .memory import traffic

Rows = TypeVar("Rows")
Phases = TypeVar("Phases")


def choose_plan(graph: StitchGraph, device: DeviceModel, config: StitchConfig | None = None) -> KernelPlan:
    """Plan a graph for a device: on one row domain where that serves it well, else grid-wide.

    A grid-wide plan has grid barriers if the device can launch cooperatively and the configuration allows them; else
    it is the same plan without the barrier, of a kernel for each phase, with no stage evaluated by every block.

    Raises:
        Misaligned: when no plan exists; the message is the reason that ``explain`` shows.
    """
    config = config or StitchConfig()
    if not device.is_gpu:
        return plan_in_block(graph, device, config)
    phases_first = wants_partition(graph, device.sms)
    plan = rows_or_phases(
        phases_first,
        lambda: plan_in_block(graph, device, config),
        lambda: make_grid_plan(graph, device, config.grid_barriers),
    )
    if phases_first or plan.grid_wide:
        return plan
    idle, again = _leaves_device_idle(plan), _reads_again(plan)
    if not idle and not again:
        return plan
    try:
        phases = make_grid_plan(graph, device, config.grid_barriers)
    except Misaligned:
        return plan
    fewer = (1 - heuristics.PHASES_GAIN) * _bytes(plan)
    return phases if idle or _bytes(phases) <= fewer else plan


def rows_or_phases(
    phases_first: bool, rows: Callable[[], Rows], phases: Callable[[], Phases]
) -> Rows | Phases:
    """What one of two ways to plan a graph gives: the other one is tried where the first does not serve.

    Raises:
        Misaligned: with the reasons of both.
    """
    try:
        return phases() if phases_first else rows()
    except Misaligned as first:
        try:
            return rows() if phases_first else phases()
        except Misaligned as second:
            row, grid = (second, first) if phases_first else (first, second)
            raise Misaligned(f"{row}; grid-wide: {grid}") from None


def _bytes(plan: KernelPlan) -> int:
    moved = traffic(plan).moved
    assert isinstance(moved, int), "plans with grid barriers are static"
    return moved


def _reads_again(plan: KernelPlan) -> bool:
    """True where blocks share one row, and read their part of it again because they cannot keep it."""
    m = plan.stage.row_mapping
    return plan.cooperative and plan.stage.alignment.domain.rows == 1 and not m.keep


def _leaves_device_idle(plan: KernelPlan) -> bool:
    """True where few blocks would share one long row, for want of a barrier across more."""
    blocks, domain = plan.stage.row_mapping.row_splits, plan.stage.alignment.domain
    if domain.rows != 1 or domain.flat or plan.cooperative or blocks >= plan.device.sms:
        return False
    moved = traffic(plan).moved
    return isinstance(moved, int) and moved > blocks * heuristics.IDLE_BLOCK_BYTES
