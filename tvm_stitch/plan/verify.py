# SPDX-License-Identifier: Apache-2.0
"""Check that a plan may become a kernel, on the plan itself.

Order: values, totals of blocks and reductions of a row are available before they are read. Memory: each output is
written once, scratch never holds two values at once, and all partial results are combined. ``checks`` has the checks
of groups, of the launch and of shared memory. The checks recompute the planner's decisions from stages, loops and
tasks. They share no code with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..graph.dtype import compute_dtype
from ..graph.extent import product, static_extent
from ..graph.ir import Operator, Tensor
from .checks.groups import group_problems
from .checks.launch import launch_problems
from .checks.layout import layout_problems
from .checks.matrix import matrix_problems, multiplied_only
from .gpu.mapping import CrossBlockReduction
from .gpu.reuse import loaded_tile
from .iteration.alignment import Key
from .kernel import KernelPlan, Stage


class WrongPlan(AssertionError):
    """A plan that must not become a kernel: a fault of the planner."""


def verified(plan: KernelPlan) -> KernelPlan:
    """Return the plan itself.

    Raises:
        WrongPlan: when it has problems. The message names the first ones.
    """
    if broken := problems(plan):
        more = f" (and {len(broken) - 3} more)" if len(broken) > 3 else ""
        raise WrongPlan(f"the plan of {plan.graph.name} is wrong: {'; '.join(broken[:3])}{more}")
    return plan


def problems(plan: KernelPlan) -> list[str]:
    """Return everything that is wrong with a plan, one line each."""
    checks = (
        _order, _outputs, _loops, group_problems, _scratch, _partials, launch_problems, _retention, layout_problems,
        matrix_problems,
    )  # fmt: skip
    return list(dict.fromkeys(line for check in checks for line in check(plan)))


def _stages(plan: KernelPlan) -> list[tuple[int, Stage]]:
    return [(f, stage) for f, stages in enumerate(plan.phases) for stage in stages]


def _reads(stage: Stage) -> list[Tensor]:
    """Return the tensors of the whole graph that a stage loads: its operators read them, and none produces them."""
    computed = {op.output for op in stage.slice.copies}
    return list(dict.fromkeys(t for op in stage.slice.copies for t in op.inputs if t not in computed))


def _writes(plan: KernelPlan) -> dict[Tensor, list[int]]:
    """Return the phases in which each value is written to device memory."""
    writers: dict[Tensor, list[int]] = {}
    for f, stage in _stages(plan):
        for op in [] if stage.slice.replicated else stage.slice.stored:
            writers.setdefault(op.output, []).append(f)
        exchanged = stage.slice.roots if stage.exchange is CrossBlockReduction.GRID else ()
        for op in (*stage.slice.cross_row, *(op for op in exchanged if op.is_reduce)):
            if op in plan.crossing.partials:
                writers.setdefault(plan.crossing.partials[op], []).append(f)
    return writers


def _ready(plan: KernelPlan) -> dict[Tensor, int]:
    """Return the first phase that may read each value that is not an input: the one after all of it is written."""
    ready = {t: max(phases) + 1 for t, phases in _writes(plan).items()}
    ready |= plan.crossing.shared  # a block's own, made in the same phase
    for op in plan.crossing.scalars:  # finished by every block, after the barrier
        ready[op.output] = ready.get(plan.crossing.partials[op], len(plan.phases) + 1)
    return ready


def _order(plan: KernelPlan) -> Iterator[str]:
    """Check that every value that a stage reads is an input, or written in an earlier phase."""
    inputs, ready = set(plan.graph.inputs), _ready(plan)
    replicated: set[Tensor] = set()  # by replicated stages so far
    for f, stage in _stages(plan):
        for t in _reads(stage):
            if t in plan.crossing.shared and t not in replicated:
                yield f"phase {f} reads {t!r} before every block has evaluated it"
        if stage.slice.replicated:
            replicated |= {op.output for op in stage.slice.stored}
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
    """Check that every output is written once, by one stage or from its total."""
    writes = _writes(plan)
    totals = {op.output for op in plan.crossing.scalars if plan.crossing.scalars[op] + 1 < len(plan.phases)}
    for t in plan.graph.outputs:
        times = len(writes.get(t, [])) + (t in totals)
        if times != 1:
            yield f"output {t!r} is written {times} times"
    for t, phases in writes.items():
        if len(phases) > 1:
            yield f"{t!r} is written in phases {phases}"
        if t not in plan.graph.outputs and t not in plan.scratch_of:
            yield f"{t!r} is written and has no scratch buffer"


def _loops(plan: KernelPlan) -> Iterator[str]:
    """Check that loops of its stage make every reduction and output, and that reductions are complete when read."""
    for f, stage in _stages(plan):
        sched = stage.schedule
        computed = [
            op for p in sched.passes for op in (*p.reduces, *(key[0] for key in (*p.outputs, *p.cross_row)))
        ]
        computed += [op for op, _ in sched.final_cross_row]
        computed += [op for op, _ in sched.row_outputs if not op.is_reduce]
        for op in {op for op, _ in stage.alignment.roots} | set(computed):
            if computed.count(op) != 1:
                yield f"phase {f} makes {op.name} {computed.count(op)} times"
        if [p.level for p in sched.passes] != sorted(p.level for p in sched.passes):
            yield f"phase {f} has its passes out of order"
        yield from _early(f, stage)


def _early(f: int, stage: Stage) -> Iterator[str]:
    """Yield the reductions that a pass reads and no pass of an earlier level has finished."""
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
    """Yield the reductions of its own that a stage reads to evaluate some values, not looking below known ones."""
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
    """Return the phases from the one that writes a value to the last that reads it."""
    lives = {}
    for t, phases in _writes(plan).items():
        last = max([*phases, *(f for f, stage in _stages(plan) if t in _reads(stage))])
        lives[t] = (min(phases), last)
    for op, f in plan.crossing.scalars.items():
        partial = plan.crossing.partials[op]
        if partial not in lives:
            continue
        readers = [g for g, stage in _stages(plan) if op.output in _reads(stage)]
        # Separate kernels finish totals anew, and resident blocks keep them.
        last = max([f + 1, *readers]) if not plan.cooperative else f + 1
        lives[partial] = (lives[partial][0], max(lives[partial][1], last))
    return lives


def _scratch(plan: KernelPlan) -> Iterator[str]:
    """Check that values in one buffer fit it, have its dtype of computation, and never live in the same phase."""
    lives = _lives(plan)
    buffers = {s.name: s for s in plan.scratch}
    if len(buffers) != len(plan.scratch):
        yield "two scratch buffers have one name"
    held: dict[str, list[Tensor]] = {}
    for t, name in plan.scratch_of.items():
        if name not in buffers:
            yield f"{t!r} is in {name}, which is not there"
            continue
        size = static_extent(product(buffers[name].shape))
        readers = [stage for _, stage in _stages(plan) if t in _reads(stage)]
        dtypes = {compute_dtype(t.dtype)} | ({t.dtype} if multiplied_only(readers, t) else set())
        if int(t.size) > size or buffers[name].dtype not in dtypes:
            yield f"{t!r} does not fit {name} of {size} {buffers[name].dtype}"
        if t not in lives:
            yield f"{t!r} has a scratch buffer and is never written"
            continue
        for other in held.setdefault(name, []):
            (first, last), (start, end) = lives[t], lives[other]
            if first <= end and start <= last:
                yield f"{t!r} and {other!r} live in {name} at once"
        held[name].append(t)
    yield from (f"{name} holds nothing" for name in buffers if name not in held)


def _partials(plan: KernelPlan) -> Iterator[str]:
    """Check that a reduction over blocks has as many partial results as blocks write, and is finished from as many."""
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
    """Check that stages of different phases load retained inputs whole, and that their threads load equal elements."""
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
