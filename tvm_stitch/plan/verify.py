# SPDX-License-Identifier: Apache-2.0
"""Check that a plan may become a kernel, on the plan itself.

Order: values, totals of blocks and reductions of a row are there before they are read. Groups: see ``verify_groups``.
Memory: each output is written once, and scratch never holds two values at once. Launch: blocks that wait for each other
are resident, and rows, columns and partial results are all taken care of. The checks work out again, from stages, loops
and tasks, the planner's decisions; they share no code with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..graph.dtype import compute_dtype
from ..graph.extent import product, static_extent
from ..graph.ir import Operator, Tensor
from .cpu.tile import CpuMapping, Lanes
from .gpu.mapping import CrossBlockReduction, RowMapping, Storage
from .gpu.occupancy import MAX_REGISTERS, OPT_IN_BYTES, blocks_per_sm
from .gpu.reuse import loaded_tile
from .iteration.alignment import Key
from .iteration.loops import LoopNest
from .kernel import KernelPlan, Stage
from .shared_memory import shared_bytes, shared_parts
from .verify_groups import group_problems
from .verify_layout import layout_problems


class WrongPlan(AssertionError):
    """A plan that no kernel may be made of: a fault of the planner."""


def verified(plan: KernelPlan) -> KernelPlan:
    """The plan itself.

    Raises:
        WrongPlan: when it has problems; the message names the first ones.
    """
    if found := problems(plan):
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        raise WrongPlan(f"the plan of {plan.graph.name} is wrong: {'; '.join(found[:3])}{more}")
    return plan


def problems(plan: KernelPlan) -> list[str]:
    """Everything that is wrong with a plan, one line each."""
    checks = (
        _order, _outputs, _loops, group_problems, _scratch, _partials, _launch, _retention, layout_problems
    )  # fmt: skip
    return list(dict.fromkeys(line for check in checks for line in check(plan)))


def _stages(plan: KernelPlan) -> list[tuple[int, Stage]]:
    return [(f, stage) for f, stages in enumerate(plan.phases) for stage in stages]


def _reads(stage: Stage) -> list[Tensor]:
    """Tensors of the whole graph that a stage loads: what its operators read and none of them makes."""
    made = {op.output for op in stage.slice.copies}
    return list(dict.fromkeys(t for op in stage.slice.copies for t in op.inputs if t not in made))


def _writes(plan: KernelPlan) -> dict[Tensor, list[int]]:
    """The phases in which each value is written to device memory."""
    found: dict[Tensor, list[int]] = {}
    for f, stage in _stages(plan):
        for op in [] if stage.slice.replicated else stage.slice.stored:
            found.setdefault(op.output, []).append(f)
        exchanged = stage.slice.roots if stage.exchange is CrossBlockReduction.GRID else ()
        for op in (*stage.slice.cross_row, *(op for op in exchanged if op.is_reduce)):
            if op in plan.crossing.partials:
                found.setdefault(plan.crossing.partials[op], []).append(f)
    return found


def _ready(plan: KernelPlan) -> dict[Tensor, int]:
    """The first phase that may read each value that is not an input: the one after all of it is written."""
    ready = {t: max(phases) + 1 for t, phases in _writes(plan).items()}
    ready |= plan.crossing.shared  # a block's own, made in the same phase
    for op in plan.crossing.scalars:  # finished by every block, after the barrier
        ready[op.output] = ready.get(plan.crossing.partials[op], len(plan.phases) + 1)
    return ready


def _order(plan: KernelPlan) -> Iterator[str]:
    """Every value that a stage reads is an input, or written in an earlier phase."""
    inputs, ready = set(plan.graph.inputs), _ready(plan)
    made: set[Tensor] = set()  # by replicated stages so far
    for f, stage in _stages(plan):
        for t in _reads(stage):
            if t in plan.crossing.shared and t not in made:
                yield f"phase {f} reads {t!r} before every block has evaluated it"
        if stage.slice.replicated:
            made |= {op.output for op in stage.slice.stored}
        if stage.slice.phase != f:
            yield f"a stage of phase {stage.slice.phase} stands in phase {f}"
        for t in _reads(stage):
            if t in inputs:
                continue
            if t not in ready:
                yield f"phase {f} reads {t!r}, which nothing writes"
            elif ready[t] > f:
                yield f"phase {f} reads {t!r}, which is ready in phase {ready[t]}"
        known = {*_reads(stage), *(op.output for op in stage.slice.copies)}
        original = {copy: t for t, copy in stage.slice.tensors.items()}
        for op in stage.graph.operators:
            for t in op.inputs:
                if original.get(t) not in known:
                    yield f"phase {f}: {op.name} reads {t!r}, a tensor of no stage"


def _outputs(plan: KernelPlan) -> Iterator[str]:
    """Every output is written once, by one stage or from its total."""
    writes = _writes(plan)
    totals = {op.output for op in plan.crossing.scalars if plan.crossing.scalars[op] + 1 < len(plan.phases)}
    for t in plan.graph.outputs:
        times = len(writes.get(t, [])) + (t in totals)
        if times != 1:
            yield f"output {t!r} is written {times} times"
    for t, phases in writes.items():
        if len(phases) > 1:
            yield f"{t!r} is written in phases {phases}"
        if t not in plan.graph.outputs and t not in plan.place:
            yield f"{t!r} is written and has no place"


def _loops(plan: KernelPlan) -> Iterator[str]:
    """Every reduction and output of a stage is made in one of its loops, and no reduction is read before it is done."""
    for f, stage in _stages(plan):
        sched = stage.schedule
        made = [
            op for p in sched.passes for op in (*p.reduces, *(key[0] for key in (*p.outputs, *p.cross_row)))
        ]
        made += [op for op, _ in sched.final_cross_row]
        made += [op for op, _ in sched.row_outputs if not op.is_reduce]
        for op in {op for op, _ in stage.alignment.roots} | set(made):
            if made.count(op) != 1:
                yield f"phase {f} makes {op.name} {made.count(op)} times"
        if [p.level for p in sched.passes] != sorted(p.level for p in sched.passes):
            yield f"phase {f} has its passes out of order"
        yield from _early(f, stage)


def _early(f: int, stage: Stage) -> Iterator[str]:
    """Reductions that a pass reads and no pass of an earlier level has finished."""
    finished = {op: p.level for p in stage.schedule.passes for op in p.reduces}
    for p in stage.schedule.passes:
        start = [(op, stage.alignment.domain.full(p.columns)) for op in p.reduces]
        for op in _reductions_read(stage, [*start, *p.outputs, *p.cross_row], set(p.reads)):
            if op not in finished or finished[op] >= p.level:
                yield f"phase {f} reads {op.name} in a pass of level {p.level}, before it is there"
    for op in _reductions_read(stage, [*stage.schedule.final_cross_row, *stage.schedule.final_values], set()):
        if op not in finished:
            yield f"phase {f} reads {op.name}, which no pass makes"


def _reductions_read(stage: Stage, start: list[Key], known: set[Key]) -> Iterator[Operator]:
    """The reductions of its own that a stage reads to evaluate some values, not looking below known ones."""
    reads, seen, own = stage.alignment.reads, set(start), set(stage.graph.operators)
    while start:
        op, point = start.pop()
        for access, at in zip(op.accesses, reads[op, point]):
            producer = access.tensor.producer
            if producer is None or at is None or producer not in own:
                continue
            key = (producer, at)
            if key in seen or key in known:
                continue
            seen.add(key)
            if producer.is_reduce:
                yield producer
            else:
                start.append(key)


def _lives(plan: KernelPlan) -> dict[Tensor, tuple[int, int]]:
    """The phases from the one that writes a value to the last that reads it."""
    found = {}
    for t, phases in _writes(plan).items():
        last = max([*phases, *(f for f, stage in _stages(plan) if t in _reads(stage))])
        found[t] = (min(phases), last)
    for op, f in plan.crossing.scalars.items():
        partial = plan.crossing.partials[op]
        if partial not in found:
            continue
        readers = [g for g, stage in _stages(plan) if op.output in _reads(stage)]
        # Kernels of their own finish totals anew; resident blocks keep them.
        last = max([f + 1, *readers]) if not plan.cooperative else f + 1
        found[partial] = (found[partial][0], max(found[partial][1], last))
    return found


def _scratch(plan: KernelPlan) -> Iterator[str]:
    """Values that share a buffer fit it, are computed in its dtype, and never live in the same phase."""
    lives = _lives(plan)
    buffers = {s.name: s for s in plan.scratch}
    if len(buffers) != len(plan.scratch):
        yield "two scratch buffers have one name"
    held: dict[str, list[Tensor]] = {}
    for t, name in plan.place.items():
        if name not in buffers:
            yield f"{t!r} is in {name}, which is not there"
            continue
        size = static_extent(product(buffers[name].shape))
        if int(t.size) > size or compute_dtype(t.dtype) != buffers[name].dtype:
            yield f"{t!r} does not fit {name} of {size} {buffers[name].dtype}"
        if t not in lives:
            yield f"{t!r} has a place and is never written"
            continue
        for other in held.setdefault(name, []):
            (first, last), (start, end) = lives[t], lives[other]
            if first <= end and start <= last:
                yield f"{t!r} and {other!r} live in {name} at once"
        held[name].append(t)
    yield from (f"{name} holds nothing" for name in buffers if name not in held)


def _launch(plan: KernelPlan) -> Iterator[str]:
    """Blocks fit the device, those that wait for each other all at once, and every row and column has its thread."""
    for f, stage in _stages(plan):
        where = f"a stage of phase {f}"
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
    """Segments divide their columns, and strips are of whole vectors."""
    for p in sched.passes:
        segment = m.segment(p.columns)
        if isinstance(p.columns, int) and isinstance(segment.extent, int) and p.columns % segment.extent:
            yield f"segments of {segment.extent} do not divide {p.columns} columns"
        if segment.cuts and (
            list(segment.cuts) != sorted({0, *segment.cuts}) or segment.cuts[-1] != segment.extent
        ):
            yield f"a segment of {segment.extent} is cut at {segment.cuts}"
    if m.lanes is Lanes.ROWS and m.strip % m.width:
        yield f"strips of {m.strip} rows are no multiple of {m.width}"
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
        yield f"{where} has {m.threads} threads a row, which is no power of two"


def _alone(plan: KernelPlan, stage: Stage) -> Iterator[str]:
    """A kernel of one stage, whose mapping is its launch."""
    m, device, rows = stage.row_mapping, plan.device, stage.alignment.domain.rows
    if m.block > device.max_threads_per_block:
        yield f"blocks of {m.block} threads exceed {device.max_threads_per_block}"
    shares = m.row_splits > 1 and bool(stage.graph.reduces)
    if shares != (m.exchange is not CrossBlockReduction.NONE):
        yield f"{m.row_splits} blocks a row, and their exchange is {m.exchange.value}"
    # A cluster has slots for every row of a block, to which the row's threads write, one to each of its blocks.
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
    if m.copied and m.storage is not Storage.SHARED:
        yield f"copies in the background where values are {m.storage.value}"
    held = max(1, m.blocks_per_sm)  # without a bound one is certain
    if m.exchange is CrossBlockReduction.GRID and not (
        isinstance(rows, int) and rows * m.row_splits <= device.sms * held
    ):
        yield f"{rows} rows of {m.row_splits} blocks are not resident, {held} a multiprocessor"


def _shared_out(rows: int, m: RowMapping) -> bool:
    """Whether every worker has a group of rows, and none more than it takes."""
    groups = -(-rows // m.rows_per_block)
    return m.workers <= groups <= m.workers * m.tasks


def _on_grid(plan: KernelPlan, shared: int) -> Iterator[str]:
    """Stages that share a launch."""
    grid = plan.shared_grid
    registers = min(MAX_REGISTERS, plan.device.registers_per_sm // (grid.threads * grid.blocks_per_sm))
    held = blocks_per_sm(plan.device, grid.threads, registers // 8 * 8, shared)
    if plan.cooperative and grid.blocks > held * plan.device.sms:
        yield f"{grid.blocks} blocks where {held} a multiprocessor with {shared} B are resident"
    for f, stage in _stages(plan):
        m = stage.row_mapping
        where = f"a stage of phase {f}"
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


def _partials(plan: KernelPlan) -> Iterator[str]:
    """What blocks reduce together has as many partial results as blocks write them, and is finished from as many."""
    partials = plan.crossing.partials
    crossing = {op for _, stage in _stages(plan) for op in stage.slice.cross_row}
    for _, stage in _stages(plan):
        if stage.exchange is CrossBlockReduction.GRID:
            crossing |= {op for op in stage.slice.roots if op.is_reduce}
            splits = stage.row_mapping.row_splits
            for op in stage.slice.roots:
                if op in partials and static_extent(partials[op].shape[-1]) != splits:
                    yield f"{op.name} has other partial results than one of {splits} blocks"
    if lost := set(partials) ^ crossing:
        yield f"reductions without a stage or partial results: {sorted(op.name for op in lost)}"
    for f, stage in _stages(plan):
        for op in stage.slice.cross_row & set(partials):
            blocks = int(partials[op].shape[-1])
            tiles = stage.tiles if int(op.output.size) == 1 else 1  # a column is in one tile
            writers = stage.stride * tiles
            if blocks != writers:
                yield f"{op.name} of phase {f} has {blocks} partial results from {writers} blocks"
        for op in stage.slice.roots:
            yield from _finish(op, partials)


def _finish(op: Operator, partials: Mapping[Operator, Tensor]) -> Iterator[str]:
    values = set(partials.values())
    for access in op.accesses if op.is_reduce else ():
        if access.tensor in values:
            extent = product(axis.extent for axis in op.reduce)
            if extent != int(access.tensor.shape[-1]):
                yield f"{op.name} is finished from {extent} of {access.tensor.shape[-1]} partial results"


def _retention(plan: KernelPlan) -> Iterator[str]:
    """What is retained is loaded whole, by stages of different phases whose threads load equal elements."""
    kept = plan.retention
    if kept is None:
        return
    if not plan.cooperative:
        yield "kernels of their own retain nothing"
    phases = [f for f, stage in _stages(plan) for k in kept.stages if stage is k]
    later = phases[1:]
    if not later or len(phases) != len(kept.stages) or phases != sorted(phases) or later[0] <= phases[0]:
        yield f"stages of phases {phases} retain"
    first = kept.stages[0]
    for stage in kept.stages:
        if (stage.tasks, stage.stride, stage.tiles, stage.offset) != (
            first.tasks,
            plan.shared_grid.blocks,
            1,
            0,
        ):
            yield "stages that retain do not take the same tasks on the same blocks"
        m = stage.row_mapping
        if m.block != plan.shared_grid.threads or m.threads != first.row_mapping.threads:
            yield "stages that retain do not give the same rows to the same threads"
        if not all(loaded_tile(stage, t) for t in kept.tensors):
            yield "a stage does not load all of what is retained"
    whole = first.tasks - 1 if first.row_mapping.split else first.tasks
    if not 0 < kept.tasks * first.stride <= whole:
        yield f"{kept.tasks} tasks are retained of {first.tasks} on {first.stride} blocks"
