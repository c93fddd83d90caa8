# SPDX-License-Identifier: Apache-2.0
"""Plan a stitch op on one row domain: one stage, whose rows stay in their blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..config import StitchConfig
from ..device import DeviceModel
from ..graph.dtype import exchanged_dtype
from ..graph.extent import Extent
from ..graph.ir import Operator, StitchGraph
from ..graph.rewrite.one_pass_variance import with_one_pass_variance
from .cpu.tile import choose_cpu_mapping
from .finalise import finalised
from .gpu.early_loads import with_early_loads
from .gpu.l2_residency import with_resident_inputs
from .gpu.mapping import CrossBlockReduction, RowMapping, Storage
from .gpu.variants import has_symbolic_rows, stages_by_length
from .iteration.alignment import Alignment, Misaligned, align
from .iteration.loops import LoopNest, schedule
from .iteration.rescaled import rescaled_sums
from .kernel import Crossing, KernelPlan, Scratch, Stage
from .rows.candidate import Candidate
from .shared_memory import with_layout
from .slices import partial_tensor, whole
from .strategies import async_copies, online, persistent, split, transposed_loads

STRATEGIES: tuple[Callable[[Alignment, DeviceModel, StitchConfig], Candidate | None], ...] = (
    persistent.propose,
    transposed_loads.propose,
    online.propose,
    async_copies.propose,
    split.propose,
)
"""The ways to map rows of static length on a GPU. Among equal estimates the earlier one is taken."""


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
        config: options, by default those of StitchConfig.
        preferred: names of operators to choose as the dominants of their groups.

    Raises:
        Misaligned: when no row domain serves the graph. The message is the reason that ``explain`` shows.
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
        # These rows are read again for every reduction: mean and variance share one reading.
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
    best = _fastest(alignment, device, config)
    alignment, sched, mapping = best.alignment, best.schedule, best.mapping
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
        scratch_of={partials[op]: s.name for op, s in scratch.items()},
    )
    return with_resident_inputs(plan)


def _fastest(alignment: Alignment, device: DeviceModel, config: StitchConfig) -> Candidate:
    """Return the candidate of the fewest estimated seconds.

    Raises:
        Misaligned: when no strategy has a candidate.
    """
    candidates, reasons = [], []
    for propose in STRATEGIES:
        try:
            candidate = propose(alignment, device, config)
        except Misaligned as err:
            reasons.append(err)
            continue
        if candidate is not None:
            candidates.append(candidate)
    if not candidates:
        raise reasons[0]
    return min(candidates, key=lambda each: each.seconds)


def turns_transposed(alignment: Alignment, device: DeviceModel, config: StitchConfig) -> bool:
    """Return whether a strategy transposes patches of inputs that a graph reads across memory."""
    turning = (transposed_loads.propose, persistent.propose)
    return any(propose(alignment, device, config) is not None for propose in turning)


def partial_scratch(sched: LoopNest, rows: Extent, mapping: RowMapping) -> dict[Operator, Scratch]:
    """Return, for each reduction, the scratch of (rows, row_splits) partial results for an exchange by grid barrier."""
    if mapping.exchange is not CrossBlockReduction.GRID:
        return {}
    reduces = [op for p in sched.passes for op in p.reduces]
    shape = (rows, mapping.row_splits)
    return {
        op: Scratch(f"partials_{i}", shape, exchanged_dtype(op.output.dtype)) for i, op in enumerate(reduces)
    }
