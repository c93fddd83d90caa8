# SPDX-License-Identifier: Apache-2.0
"""What every grid-wide plan must hold, checked on the plan itself: order, scratch, blocks, partial results.

The checks work out again, from parts and tasks, what the planner decided; they share no code with it.
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
from ..plan.grid_memory import grid_shared_bytes
from ..plan.grid_plan import GridPart, GridPlan
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


def plan_problems(plan: GridPlan) -> list[str]:
    """Everything that is wrong with a plan, one line each."""
    return [
        *_order(plan), *_outputs(plan), *_scratch(plan), *_launch(plan), *_partials(plan), *_retention(plan)
    ]  # fmt: skip


def _parts(plan: GridPlan) -> list[tuple[int, GridPart]]:
    return [(f, part) for f, parts in enumerate(plan.phases) for part in parts]


def _reads(part: GridPart) -> list[Tensor]:
    """Tensors of the whole graph that a part loads: what its operators read and none of them makes."""
    made = {op.output for op in part.part.copies}
    return list(dict.fromkeys(t for op in part.part.copies for t in op.inputs if t not in made))


def _writes(plan: GridPlan) -> dict[Tensor, list[int]]:
    """The phases in which each value is written to device memory."""
    found: dict[Tensor, list[int]] = {}
    for f, part in _parts(plan):
        for op in [] if part.part.replicated else part.part.stored:
            found.setdefault(op.output, []).append(f)
        for op in part.part.folds:
            found.setdefault(plan.partition.partials[op], []).append(f)
    return found


def _ready(plan: GridPlan) -> dict[Tensor, int]:
    """The first phase that may read each value that is not an input: the one after all of it is written."""
    ready = {t: max(phases) + 1 for t, phases in _writes(plan).items()}
    ready |= plan.partition.shared  # a block's own, made in the same phase
    for op in plan.partition.scalars:  # finished by every block, after the barrier
        ready[op.output] = ready.get(plan.partition.partials[op], len(plan.phases) + 1)
    return ready


def _order(plan: GridPlan) -> list[str]:
    """Every value that a part reads is an input, or written in an earlier phase."""
    inputs, ready = set(plan.graph.inputs), _ready(plan)
    problems = []
    made: set[Tensor] = set()  # by replicated parts so far
    for f, part in _parts(plan):
        for t in _reads(part):
            if t in plan.partition.shared and t not in made:
                problems.append(f"phase {f} reads {t!r} before every block has evaluated it")
        if part.part.replicated:
            made |= {op.output for op in part.part.stored}
        if part.part.phase != f:
            problems.append(f"a part of phase {part.part.phase} stands in phase {f}")
        for t in _reads(part):
            if t in inputs:
                continue
            if t not in ready:
                problems.append(f"phase {f} reads {t!r}, which nothing writes")
            elif ready[t] > f:
                problems.append(f"phase {f} reads {t!r}, which is ready in phase {ready[t]}")
        known = {*_reads(part), *(op.output for op in part.part.copies)}
        copied = {id(t): original for original, t in part.part.tensors.items()}
        for op in part.graph.operators:
            for t in op.inputs:
                if copied.get(id(t)) not in known:
                    problems.append(f"phase {f}: {op.name} reads {t!r}, a tensor of no part")
    return problems


def _outputs(plan: GridPlan) -> list[str]:
    """Every output is written once, by one part or from its total."""
    problems = []
    writes = _writes(plan)
    totals = {op.output for op in plan.partition.scalars if plan.partition.scalars[op] + 1 < len(plan.phases)}
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


def _lives(plan: GridPlan) -> dict[Tensor, tuple[int, int]]:
    """The phases from the one that writes a value to the last that reads it."""
    found = {}
    for t, phases in _writes(plan).items():
        last = max([*phases, *(f for f, part in _parts(plan) if t in _reads(part))])
        found[t] = (min(phases), last)
    for op, f in plan.partition.scalars.items():
        partial = plan.partition.partials[op]
        if partial not in found:
            continue
        readers = [g for g, part in _parts(plan) if op.output in _reads(part)]
        # Kernels of their own finish totals anew; resident blocks keep them.
        last = max([f + 1, *readers]) if not plan.cooperative else f + 1
        found[partial] = (found[partial][0], max(found[partial][1], last))
    return found


def _scratch(plan: GridPlan) -> list[str]:
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


def _launch(plan: GridPlan) -> list[str]:
    """Blocks of a kernel with barriers are resident at once, and every task has a block."""
    problems = []
    registers = min(MAX_REGISTERS, plan.device.registers_per_sm // (plan.threads * plan.blocks_per_sm))
    shared = grid_shared_bytes(plan)
    held = blocks_per_sm(plan.device, plan.threads, registers // 8 * 8, shared)
    if plan.cooperative and plan.blocks > held * plan.device.sms:
        problems.append(f"{plan.blocks} blocks where {held} a multiprocessor with {shared} B are resident")
    if plan.cooperative and len(plan.phases) > 1 and not plan.device.cooperative:
        problems.append("a barrier on a device without cooperative launches")
    for f, part in _parts(plan):
        m = part.mapping
        where = f"a part of phase {f}"
        if m.block != plan.threads:
            problems.append(f"{where} has blocks of {m.block} threads in a launch of {plan.threads}")
        if not 0 < part.stride * part.tiles <= plan.blocks or not 0 <= part.offset < plan.blocks:
            problems.append(
                f"{where}: {part.stride} x {part.tiles} blocks from {part.offset} of {plan.blocks}"
            )
        rows = int(part.alignment.domain.rows)
        for p in part.schedule.passes:
            covered = m.covered(p.columns) * (part.tasks if m.split else 1)
            if covered < int(p.columns):
                problems.append(f"{where} covers {covered} of {p.columns} columns")
        if not m.split and part.tasks * m.rows_per_block < rows:
            problems.append(f"{where} covers {part.tasks * m.rows_per_block} of {rows} rows")
    return problems


def _partials(plan: GridPlan) -> list[str]:
    """A fold has as many partial results as blocks write them, and its finish reduces over as many."""
    problems = []
    partials = plan.partition.partials
    if folded := set(partials) ^ {op for _, part in _parts(plan) for op in part.part.folds}:
        problems.append(f"folds without a part or partial results: {sorted(op.name for op in folded)}")
    for f, part in _parts(plan):
        for op in part.part.folds & set(partials):
            blocks = int(partials[op].shape[-1])
            writers = part.stride * (part.tiles if int(op.output.size) == 1 else 1)  # a column is in one tile
            if blocks != writers:
                problems.append(f"{op.name} of phase {f} has {blocks} partial results from {writers} blocks")
        problems += [p for op in part.part.roots for p in _finish(op, partials)]
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


def _retention(plan: GridPlan) -> list[str]:
    """What is retained is loaded whole, by parts of different phases whose threads load equal elements."""
    kept = plan.retention
    if kept is None:
        return []
    problems = []
    if not plan.cooperative:
        problems.append("kernels of their own retain nothing")
    phases = [f for f, part in _parts(plan) for k in kept.parts if part is k]
    later = phases[1:]
    if not later or len(phases) != len(kept.parts) or phases != sorted(phases) or later[0] <= phases[0]:
        problems.append(f"parts of phases {phases} retain")
    first = kept.parts[0]
    for part in kept.parts:
        if (part.tasks, part.stride, part.tiles, part.offset) != (first.tasks, plan.blocks, 1, 0):
            problems.append("parts that retain do not take the same tasks on the same blocks")
        if part.mapping.block != plan.threads or part.mapping.threads != first.mapping.threads:
            problems.append("parts that retain do not give the same rows to the same threads")
        if not all(loaded_tile(part, t) for t in kept.tensors):
            problems.append("a part does not load all of what is retained")
    whole = first.tasks - 1 if first.mapping.split else first.tasks
    if not 0 < kept.tasks * first.stride <= whole:
        problems.append(f"{kept.tasks} tasks are retained of {first.tasks} on {first.stride} blocks")
    return problems
