# SPDX-License-Identifier: Apache-2.0
"""StitchPlan: everything decided about one stitch op before code is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..config import StitchConfig
from ..device import DeviceModel
from ..graph.ir import StitchGraph
from ..graph.rewrite.moments import merge_moments
from .alignment import Alignment, align
from .cpu_mapping import choose_cpu_mapping
from .mapping import RowMapping, settle
from .passes import Keep, Schedule, schedule
from .scratch import Scratch
from .splitting import choose_mapping, partial_scratch


@dataclass
class StitchPlan:
    """A stitch op: domain and points (``alignment``), passes (``schedule``), thread ``mapping`` and ``scratch``."""

    graph: StitchGraph
    device: DeviceModel
    alignment: Alignment
    schedule: Schedule
    mapping: RowMapping
    scratch: list[Scratch] = field(default_factory=list)


def make_plan(graph: StitchGraph, device: DeviceModel, config: StitchConfig | None = None) -> StitchPlan:
    """Plan a graph for a device.

    Args:
        graph: a stitch op's graph.
        device: the device that the kernel is for.
        config: options; by default all are as StitchConfig has them.

    Raises:
        Misaligned: when no row domain serves the graph; the message is the reason that ``explain`` shows.
    """
    if not device.is_gpu:
        alignment = align(graph)
        return _plan_cpu(graph, device, alignment, schedule(alignment))
    plan = _plan_gpu(graph, device, config or StitchConfig())
    if (
        not plan.mapping.keep
    ):  # rows that are read again for every reduction: let mean and variance share one reading
        merged = merge_moments(graph)
        if merged is not graph:
            return _plan_gpu(merged, device, config or StitchConfig())
    return plan


def _plan_gpu(graph: StitchGraph, device: DeviceModel, config: StitchConfig) -> StitchPlan:
    alignment = align(graph)
    sched = schedule(alignment)
    mapping = choose_mapping(alignment, sched, device, config)
    sched = settle(alignment, sched, mapping, device)
    scratch = list(partial_scratch(sched, alignment.domain.rows, mapping).values())
    return StitchPlan(graph, device, alignment, sched, mapping, scratch)


def _plan_cpu(graph: StitchGraph, device: DeviceModel, alignment: Alignment, sched: Schedule) -> StitchPlan:
    mapping = choose_cpu_mapping(alignment, sched, device)
    if not mapping.keep:
        sched = schedule(alignment, Keep.NOTHING)
    return StitchPlan(graph, device, alignment, sched, mapping)
