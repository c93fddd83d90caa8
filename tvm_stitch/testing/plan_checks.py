# SPDX-License-Identifier: Apache-2.0
"""What every grid-wide plan must hold, checked on the plan itself: order, scratch, blocks, partial results.

The checks work out again, from stages and tasks, what the planner decided; they share no code with it.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm

from ..config import StitchConfig
from ..graph.dtype import compute_dtype
from ..graph.ir import Operator, StitchGraph, Tensor
from ..graph.reader import read
from ..plan.gpu.occupancy import MAX_REGISTERS, blocks_per_sm
from ..plan.gpu.reuse import loaded_tile
from ..plan.kernel import KernelPlan, Stage
from ..plan.memory import shared_bytes
from .random_graphs import emulated_target


def stitch_graphs(mod: tvm.IRModule, config: StitchConfig | None = None) -> list[StitchGraph]:
    """The graph of every stitch op that a Relax module becomes for a GPU with grid barriers."""
    from tvm import relax, tirx

    from ..relax.mark import MergeStitchOps
    from ..relax.stitch_ops import STITCH_ATTR, StitchOps

    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.FoldConstant(),
        relax.transform.ConvertToDataflow(min_size=1),
        relax.transform.CanonicalizeBindings(),
        StitchOps(config),
        MergeStitchOps(),
    ]
    with emulated_target():
        merged = tvm.transform.Sequential(passes)(mod)
    marked = [(g.name_hint, f) for g, f in merged.functions_items() if isinstance(f, tirx.PrimFunc)]
    return [read(f, name) for name, f in marked if f.attrs and STITCH_ATTR in f.attrs]


def stitch_graph(mod: tvm.IRModule, config: StitchConfig | None = None) -> StitchGraph:
    """The graph of a module that becomes one stitch op.

    Raises:
        ValueError: when it becomes several.
    """
    found = stitch_graphs(mod, config)
    if len(found) != 1:
        raise ValueError(f"the module becomes {len(found)} stitch ops: use stitch_graphs")
    return found[0]


def plan_problems(plan: KernelPlan) -> list[str]:
    """Everything that is wrong with a plan, one line each."""
    return [
        *_order(plan), *_outputs(plan), *_scratch(plan), *_launch(plan), *_partials(plan), *_retention(plan)
    ]  # fmt: skip


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
        for op in stage.slice.folds:
            found.setdefault(plan.crossing.partials[op], []).append(f)
    return found


def _ready(plan: KernelPlan) -> dict[Tensor, int]:
    """The first phase that may read each value that is not an input: the one after all of it is written."""
    ready = {t: max(phases) + 1 for t, phases in _writes(plan).items()}
    ready |= plan.crossing.shared  # a block's own, made in the same phase
    for op in plan.crossing.scalars:  # finished by every block, after the barrier
        ready[op.output] = ready.get(plan.crossing.partials[op], len(plan.phases) + 1)
    return ready


def _order(plan: KernelPlan) -> list[str]:
    """Every value that a stage reads is an input, or written in an earlier phase."""
    inputs, ready = set(plan.graph.inputs), _ready(plan)
    problems = []
    made: set[Tensor] = set()  # by replicated stages so far
    for f, stage in _stages(plan):
        for t in _reads(stage):
            if t in plan.crossing.shared and t not in made:
                problems.append(f"phase {f} reads {t!r} before every block has evaluated it")
        if stage.slice.replicated:
            made |= {op.output for op in stage.slice.stored}
        if stage.slice.phase != f:
            problems.append(f"a stage of phase {stage.slice.phase} stands in phase {f}")
        for t in _reads(stage):
            if t in inputs:
                continue
            if t not in ready:
                problems.append(f"phase {f} reads {t!r}, which nothing writes")
            elif ready[t] > f:
                problems.append(f"phase {f} reads {t!r}, which is ready in phase {ready[t]}")
        known = {*_reads(stage), *(op.output for op in stage.slice.copies)}
        copied = {id(t): original for original, t in stage.slice.tensors.items()}
        for op in stage.graph.operators:
            for t in op.inputs:
                if copied.get(id(t)) not in known:
                    problems.append(f"phase {f}: {op.name} reads {t!r}, a tensor of no stage")
    return problems


def _outputs(plan: KernelPlan) -> list[str]:
    """Every output is written once, by one stage or from its total."""
    problems = []
    writes = _writes(plan)
    totals = {op.output for op in plan.crossing.scalars if plan.crossing.scalars[op] + 1 < len(plan.phases)}
    for t in plan.graph.outputs:
        times = len(writes.get(t, [])) + (t in totals)
        if times != 1:
            problems.append(f"output {t!r} is written {times} times")
    for t, phases in writes.items():
        if len(phases) > 1:
            problems.append(f"{t!r} is written in phases {phases}")
        if t not in plan.graph.outputs and t not in plan.place:
            problems.append(f"{t!r} is written and has no place")
    return problems


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


def _scratch(plan: KernelPlan) -> list[str]:
    """Values that share a buffer fit it, are computed in its dtype, and never live in the same phase."""
    problems = []
    lives = _lives(plan)
    buffers = {s.name: s for s in plan.scratch}
    if len(buffers) != len(plan.scratch):
        problems.append("two scratch buffers have one name")
    held: dict[str, list[Tensor]] = {}
    for t, name in plan.place.items():
        if name not in buffers:
            problems.append(f"{t!r} is in {name}, which is not there")
            continue
        size = 1
        for extent in buffers[name].shape:
            assert isinstance(extent, int)
            size *= extent
        if int(t.size) > size or compute_dtype(t.dtype) != buffers[name].dtype:
            problems.append(f"{t!r} does not fit {name} of {size} {buffers[name].dtype}")
        if t not in lives:
            problems.append(f"{t!r} has a place and is never written")
            continue
        for other in held.setdefault(name, []):
            (first, last), (start, end) = lives[t], lives[other]
            if first <= end and start <= last:
                problems.append(f"{t!r} and {other!r} live in {name} at once")
        held[name].append(t)
    problems += [f"{name} holds nothing" for name in buffers if name not in held]
    return problems


def _launch(plan: KernelPlan) -> list[str]:
    """Blocks of a kernel with barriers are resident at once, and every task has a block."""
    problems = []
    grid = plan.shared_grid
    registers = min(MAX_REGISTERS, plan.device.registers_per_sm // (grid.threads * grid.blocks_per_sm))
    shared = shared_bytes(plan)
    held = blocks_per_sm(plan.device, grid.threads, registers // 8 * 8, shared)
    if plan.cooperative and grid.blocks > held * plan.device.sms:
        problems.append(f"{grid.blocks} blocks where {held} a multiprocessor with {shared} B are resident")
    if plan.cooperative and len(plan.phases) > 1 and not plan.device.cooperative:
        problems.append("a barrier on a device without cooperative launches")
    for f, stage in _stages(plan):
        m = stage.row_mapping
        where = f"a stage of phase {f}"
        if m.block != grid.threads:
            problems.append(f"{where} has blocks of {m.block} threads in a launch of {grid.threads}")
        if not 0 < stage.stride * stage.tiles <= grid.blocks or not 0 <= stage.offset < grid.blocks:
            problems.append(
                f"{where}: {stage.stride} x {stage.tiles} blocks from {stage.offset} of {grid.blocks}"
            )
        rows = int(stage.alignment.domain.rows)
        for p in stage.schedule.passes:
            covered = m.covered(p.columns) * (stage.tasks if m.split else 1)
            if covered < int(p.columns):
                problems.append(f"{where} covers {covered} of {p.columns} columns")
        if not m.split and stage.tasks * m.rows_per_block < rows:
            problems.append(f"{where} covers {stage.tasks * m.rows_per_block} of {rows} rows")
    return problems


def _partials(plan: KernelPlan) -> list[str]:
    """A fold has as many partial results as blocks write them, and its finish reduces over as many."""
    problems = []
    partials = plan.crossing.partials
    if folded := set(partials) ^ {op for _, stage in _stages(plan) for op in stage.slice.folds}:
        problems.append(f"folds without a stage or partial results: {sorted(op.name for op in folded)}")
    for f, stage in _stages(plan):
        for op in stage.slice.folds & set(partials):
            blocks = int(partials[op].shape[-1])
            writers = stage.stride * (
                stage.tiles if int(op.output.size) == 1 else 1
            )  # a column is in one tile
            if blocks != writers:
                problems.append(f"{op.name} of phase {f} has {blocks} partial results from {writers} blocks")
        problems += [p for op in stage.slice.roots for p in _finish(op, partials)]
    return problems


def _finish(op: Operator, partials: Mapping[Operator, Tensor]) -> list[str]:
    values = set(partials.values())
    for access in op.accesses if op.is_reduce else ():
        if access.tensor in values:
            extent = 1
            for axis in op.reduce:
                extent *= int(axis.extent)
            if extent != int(access.tensor.shape[-1]):
                return [f"{op.name} is finished from {extent} of {access.tensor.shape[-1]} partial results"]
    return []


def _retention(plan: KernelPlan) -> list[str]:
    """What is retained is loaded whole, by stages of different phases whose threads load equal elements."""
    kept = plan.retention
    if kept is None:
        return []
    problems = []
    if not plan.cooperative:
        problems.append("kernels of their own retain nothing")
    phases = [f for f, stage in _stages(plan) for k in kept.stages if stage is k]
    later = phases[1:]
    if not later or len(phases) != len(kept.stages) or phases != sorted(phases) or later[0] <= phases[0]:
        problems.append(f"stages of phases {phases} retain")
    first = kept.stages[0]
    for stage in kept.stages:
        if (stage.tasks, stage.stride, stage.tiles, stage.offset) != (
            first.tasks,
            plan.shared_grid.blocks,
            1,
            0,
        ):
            problems.append("stages that retain do not take the same tasks on the same blocks")
        m = stage.row_mapping
        if m.block != plan.shared_grid.threads or m.threads != first.row_mapping.threads:
            problems.append("stages that retain do not give the same rows to the same threads")
        if not all(loaded_tile(stage, t) for t in kept.tensors):
            problems.append("a stage does not load all of what is retained")
    whole = first.tasks - 1 if first.row_mapping.split else first.tasks
    if not 0 < kept.tasks * first.stride <= whole:
        problems.append(f"{kept.tasks} tasks are retained of {first.tasks} on {first.stride} blocks")
    return problems
