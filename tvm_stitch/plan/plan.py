# SPDX-License-Identifier: Apache-2.0
"""StitchPlan: everything decided about one stitch op before code is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..device import DeviceModel
from ..graph.ir import StitchGraph
from .alignment import Alignment, align
from .cpu_mapping import choose_cpu_mapping
from .mapping import RowMapping, choose_mapping, keep_in_shared
from .passes import Keep, Schedule, schedule
from .scratch import Scratch


@dataclass
class StitchPlan:
    """A stitch op: domain and points (``alignment``), passes (``schedule``), thread ``mapping`` and ``scratch``."""

    graph: StitchGraph
    device: DeviceModel
    alignment: Alignment
    schedule: Schedule
    mapping: RowMapping
    scratch: list[Scratch] = field(default_factory=list)


def make_plan(graph: StitchGraph, device: DeviceModel) -> StitchPlan:
    """Plan a graph for a device.

    Raises:
        Misaligned: when no in-block plan exists; the message is the reason that ``explain`` shows.
    """
    alignment = align(graph)
    sched = schedule(alignment)
    mapping = (choose_mapping if device.is_gpu else choose_cpu_mapping)(alignment, sched, device)
    if not mapping.keep:
        sched = schedule(alignment, Keep.LOADS)
        if not (device.is_gpu and keep_in_shared(sched, mapping, device)):
            sched = schedule(alignment, Keep.NOTHING)
    return StitchPlan(graph, device, alignment, sched, mapping)
