# SPDX-License-Identifier: Apache-2.0
"""Plan a stitch op on one row domain: one stage, whose rows stay in their blocks."""

from __future__ import annotations

from collections.abc import Collection

from ..config import StitchConfig
from ..device import DeviceModel
from ..graph.ir import StitchGraph
from ..graph.rewrite.one_pass_variance import with_one_pass_variance
from .cpu.tile import choose_cpu_mapping
from .finalise import finalised
from .gpu.early_loads import with_early_loads
from .gpu.l2_residency import with_resident_inputs
from .gpu.mapping import CrossBlockReduction, Storage
from .gpu.tile import settled
from .gpu.variants import has_symbolic_rows, stages_by_length
from .iteration.alignment import align
from .iteration.loops import schedule
from .iteration.rescaled import rescaled_sums, with_fewest_exchanges
from .kernel import Crossing, KernelPlan, Stage
from .shared_memory import with_layout
from .slices import partial_tensor, whole
from .strategies.async_copies import plan_copied
from .strategies.online import plan_online
from .strategies.split import choose_mapping, partial_scratch
from .strategies.transposed_loads import plan_crossed


def plan_in_block(
    graph: StitchGraph,
    device: DeviceModel,
    config: StitchConfig | None = None,
    preferred: Collection[str] = (),
) -> KernelPlan:
    """Plan a graph for a device.

    Args:
        graph: a stitch op's graph.
        device: the device that the kernel is for.
        config: options; by default all are as StitchConfig has them.
        preferred: names of operators to choose as the dominants of their groups.

    Raises:
        Misaligned: when no row domain serves the graph; the message is the reason that ``explain`` shows.
    """
    return with_layout(finalised(_plan(graph, device, config, preferred), preferred))


def _plan(
    graph: StitchGraph, device: DeviceModel, config: StitchConfig | None, preferred: Collection[str]
) -> KernelPlan:
    if not device.is_gpu:
        alignment = align(graph, device.choices, preferred=preferred)
        sched = schedule(alignment)
        mapping = choose_cpu_mapping(alignment, sched, device)
        return KernelPlan(graph, device, ((Stage(whole(alignment), sched, mapping),),))
    config = config or StitchConfig()
    device = device.configured(config)
    plan = _plan_gpu(graph, device, config, preferred)
    if plan.stage.row_mapping.storage is not Storage.STEPS and not plan.stage.row_mapping.keep:
        # Rows that are read again for every reduction: let mean and variance share one reading.
        merged = with_one_pass_variance(graph)
        if merged is not graph:
            return _plan_gpu(merged, device, config, preferred)
    return plan


def _plan_gpu(
    graph: StitchGraph, device: DeviceModel, config: StitchConfig, preferred: Collection[str]
) -> KernelPlan:
    alignment = align(graph, device.choices, preferred=preferred)
    sched = schedule(alignment)
    if has_symbolic_rows(alignment, sched):
        stage, variants = stages_by_length(alignment, sched, device)
        return KernelPlan(graph, device, ((stage,),), variants=variants)
    crossed = plan_crossed(graph, alignment, device)
    if crossed is not None:
        alignment, sched, mapping = crossed
    elif (online := plan_online(alignment, device)) is not None:
        sched, mapping = online
    elif (copied := plan_copied(alignment, device)) is not None:
        sched, mapping = copied
    else:
        sched, mapping = settled(alignment, sched, choose_mapping(alignment, sched, device, config), device)
        if mapping.exchange is not CrossBlockReduction.NONE:
            sched = with_fewest_exchanges(alignment, sched)
    scratch = partial_scratch(sched, alignment.domain.rows, mapping)
    partials = {op: partial_tensor(op, mapping.row_splits, s.dtype) for op, s in scratch.items()}
    rescaled = rescaled_sums(alignment, sched) if mapping.shares_rows else {}
    stage = with_early_loads(Stage(whole(alignment), sched, mapping, rescaled=rescaled), device)
    plan = KernelPlan(
        graph,
        device,
        ((stage,),),
        Crossing(partials),
        scratch=tuple(scratch.values()),
        place={partials[op]: s.name for op, s in scratch.items()},
    )
    return with_resident_inputs(plan)
