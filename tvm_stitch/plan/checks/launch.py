# SPDX-License-Identifier: Apache-2.0
"""Check the launch of a plan: blocks fit the device, and every row and column has a thread.

The checks recompute launches from mappings and domains. They share no code with the planner.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.extent import static_extent
from ..cpu.tile import CpuMapping, Lanes
from ..gpu.mapping import CrossBlockReduction, RowMapping, Storage
from ..gpu.occupancy import MAX_REGISTERS, OPT_IN_BYTES, blocks_per_sm
from ..iteration.loops import LoopNest
from ..kernel import KernelPlan, Stage
from ..shared_memory import shared_bytes, shared_parts


def launch_problems(plan: KernelPlan) -> Iterator[str]:
    """Check that blocks fit the device, waiting ones all at once, and that every row and column has its thread."""
    for where, stage in _stages(plan):
        if isinstance(stage.mapping, CpuMapping) == plan.device.is_gpu:
            yield f"{where} is mapped for another kind of device than {plan.device.name}"
        elif isinstance(stage.mapping, CpuMapping):
            yield from _on_cpu(stage.schedule, stage.mapping)
        else:
            yield from _columns_covered(where, stage, stage.mapping)
    for variant in plan.variants:
        m = variant.stage.row_mapping
        for e in variant.stage.schedule.spaces:
            if not isinstance(e, int) and m.block_columns(e) < variant.longest:
                yield f"a variant covers {m.block_columns(e)} of {variant.longest} columns"
    if not plan.device.is_gpu:
        if plan.grid is not None or len(plan.stages) != 1 or plan.crossing.partials:
            yield "tasks of a CPU have one stage, and nothing crosses between them"
        return
    shared, device = shared_bytes(plan), plan.device
    if shared > device.shared_per_block:
        yield f"{shared} B of shared memory exceed {device.shared_per_block}"
    static, dynamic = shared_parts(plan)
    if (static, dynamic) != (plan.shared.static, plan.shared.dynamic):
        yield f"{static} + {dynamic} B of shared memory are laid out as {plan.shared}"
    if static > OPT_IN_BYTES:
        yield f"{static} B of static shared memory exceed {OPT_IN_BYTES}"
    if plan.cooperative and not device.cooperative:
        yield "a barrier on a device without cooperative launches"
    yield from _on_grid(plan, shared) if plan.grid is not None else _alone(plan, plan.stage)


def _on_cpu(sched: LoopNest, m: CpuMapping) -> Iterator[str]:
    """Check that segments divide their columns, and that strips are of whole vectors."""
    for p in sched.passes:
        segment = m.segment(p.columns)
        if isinstance(p.columns, int) and isinstance(segment.extent, int) and p.columns % segment.extent:
            yield f"segments of {segment.extent} do not divide {p.columns} columns"
        if segment.cuts and (
            list(segment.cuts) != sorted({0, *segment.cuts}) or segment.cuts[-1] != segment.extent
        ):
            yield f"a segment of {segment.extent} is cut at {segment.cuts}"
    if m.lanes is Lanes.ROWS and m.strip % m.width:
        yield f"strips of {m.strip} rows are not a multiple of {m.width}"
    together = [*m.columns_together.values(), *(segment.together for segment in m.inner.values())]
    if min(m.width, m.rows_per_task, m.strip, m.elements_per_task, m.tail_width, *together) < 1:
        yield "a task or a vector holds nothing"


def _columns_covered(where: str, stage: Stage, m: RowMapping) -> Iterator[str]:
    for p in stage.schedule.passes:
        if not isinstance(p.columns, int):
            continue
        covered = m.covered(p.columns) * (stage.tasks if m.split else 1)
        if covered < p.columns and not (m.split and stage.tasks == 1):
            yield f"{where} covers {covered} of {p.columns} columns"
    if not m.split and m.threads & (m.threads - 1):
        yield f"{where} has {m.threads} threads a row, which is not a power of two"


def _alone(plan: KernelPlan, stage: Stage) -> Iterator[str]:
    """Check a kernel of one stage, whose mapping is its launch."""
    m, device, rows = stage.row_mapping, plan.device, stage.alignment.domain.rows
    if m.block > device.max_threads_per_block:
        yield f"blocks of {m.block} threads exceed {device.max_threads_per_block}"
    shares = m.row_splits > 1 and bool(stage.graph.reduces)
    if shares != (m.exchange is not CrossBlockReduction.NONE):
        yield f"{m.row_splits} blocks a row, and their exchange is {m.exchange.value}"
    # A cluster has slots for every row of a block. The row's threads write to them, one to each of its blocks.
    several = m.exchange is CrossBlockReduction.CLUSTER and m.storage is Storage.REGISTERS
    fewest = m.row_splits if several else device.warp
    stays = several and m.workers > 0
    if shares and (
        (m.rows_per_block > 1 and not several) or (m.tasks > 1 and not stays) or m.threads < fewest
    ):
        yield f"{m.rows_per_block} rows a block, {m.tasks} tasks and {m.threads} threads a row exchange nothing"
    if m.exchange is CrossBlockReduction.CLUSTER and m.row_splits > device.max_cluster:
        yield f"clusters of {m.row_splits} blocks exceed {device.max_cluster}"
    kept = [*stage.schedule.kept_values, *stage.schedule.kept_loads]
    if kept and not m.keep:
        yield f"{len(kept)} of the schedule's values are kept nowhere"
    if m.workers and not (isinstance(rows, int) and _shared_out(rows, m)):
        yield f"{m.workers} workers of up to {m.tasks} groups of {m.rows_per_block} rows for {rows} rows"
    if m.async_copies and m.storage is not Storage.SHARED:
        yield f"copies in the background where values are {m.storage.value}"
    held = max(1, m.blocks_per_sm)  # without a bound, one resident block is certain
    if m.exchange is CrossBlockReduction.GRID and not (
        isinstance(rows, int) and rows * m.row_splits <= device.sms * held
    ):
        yield f"{rows} rows of {m.row_splits} blocks are not resident, {held} a multiprocessor"


def _shared_out(rows: int, m: RowMapping) -> bool:
    """Return whether every worker has a group of rows, and none more than its tasks."""
    groups = -(-rows // m.rows_per_block)
    return m.workers <= groups <= m.workers * m.tasks


def _on_grid(plan: KernelPlan, shared: int) -> Iterator[str]:
    """Check stages that share a launch."""
    grid = plan.shared_grid
    registers = min(MAX_REGISTERS, plan.device.registers_per_sm // (grid.threads * grid.blocks_per_sm))
    held = blocks_per_sm(plan.device, grid.threads, registers // 8 * 8, shared)
    if plan.cooperative and grid.blocks > held * plan.device.sms:
        yield f"{grid.blocks} blocks where {held} a multiprocessor with {shared} B are resident"
    for where, stage in _stages(plan):
        m = stage.row_mapping
        if m.block != grid.threads:
            yield f"{where} has blocks of {m.block} threads in a launch of {grid.threads}"
        if not 0 < stage.stride * stage.tiles <= grid.blocks or not 0 <= stage.offset < grid.blocks:
            yield f"{where}: {stage.stride} x {stage.tiles} blocks from {stage.offset} of {grid.blocks}"
        taken, rows = stage.tasks * m.rows_per_block, static_extent(stage.alignment.domain.rows)
        if not m.split and taken < rows:
            yield f"{where} covers {taken} of {rows} rows"
        for p in stage.schedule.passes:
            if m.split and stage.tasks * m.covered(p.columns) < static_extent(p.columns):
                yield f"{where} covers {stage.tasks * m.covered(p.columns)} of {p.columns} columns"


def _stages(plan: KernelPlan) -> list[tuple[str, Stage]]:
    return [(f"a stage of phase {f}", stage) for f, stages in enumerate(plan.phases) for stage in stages]
