# SPDX-License-Identifier: Apache-2.0
"""StitchPlan: everything decided about one stitch op before code is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import StitchConfig
from ..device import DeviceModel
from ..graph.ir import StitchGraph
from ..graph.rewrite.one_pass_variance import with_one_pass_variance
from .cpu.tile import CpuMapping, choose_cpu_mapping
from .gpu.split import choose_mapping, partial_scratch
from .gpu.tile import CrossBlockReduction, RowMapping, settled
from .gpu.workspace import Scratch
from .iteration.alignment import Alignment, align
from .iteration.loops import LoopNest, schedule


@dataclass(frozen=True)
class StitchPlan:
    """A stitch op: domain and points (``alignment``), passes (``schedule``), thread ``mapping`` and ``scratch``."""

    graph: StitchGraph
    device: DeviceModel
    alignment: Alignment
    schedule: LoopNest
    mapping: RowMapping | CpuMapping
    scratch: Sequence[Scratch] = ()

    @property
    def row_mapping(self) -> RowMapping:
        """The mapping of a plan for a GPU."""
        assert isinstance(self.mapping, RowMapping), "the plan was not made for a GPU"
        return self.mapping

    @property
    def exchange(self) -> CrossBlockReduction:
        """How blocks that share a row combine their partial results; a CPU's tasks do not."""
        return self.mapping.exchange if isinstance(self.mapping, RowMapping) else CrossBlockReduction.NONE


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
        sched = schedule(alignment)
        return StitchPlan(graph, device, alignment, sched, choose_cpu_mapping(alignment, sched, device))
    plan = _plan_gpu(graph, device, config or StitchConfig())
    if not plan.row_mapping.keep:
        # Rows that are read again for every reduction: let mean and variance share one reading.
        merged = with_one_pass_variance(graph)
        if merged is not graph:
            return _plan_gpu(merged, device, config or StitchConfig())
    return plan


def _plan_gpu(graph: StitchGraph, device: DeviceModel, config: StitchConfig) -> StitchPlan:
    alignment = align(graph)
    sched = schedule(alignment)
    sched, mapping = settled(alignment, sched, choose_mapping(alignment, sched, device, config), device)
    scratch = tuple(partial_scratch(sched, alignment.domain.rows, mapping).values())
    return StitchPlan(graph, device, alignment, sched, mapping, scratch)
