# SPDX-License-Identifier: Apache-2.0
"""Reuse between phases: inputs that a block loads in one phase stay on chip for the phases that read them again.

The blocks of a grid-wide plan stay for all of its phases. Stages of several phases may read the same input and share
out its elements alike. Each thread then finds in a later phase the elements that it loaded in an earlier one. As many
tasks as fit are kept in shared memory, and some more in registers. This is AStitch's hierarchical data reuse (section
3.2), across a grid barrier instead of a block's. The caches do not do this. In a second sweep over more than they
hold, every element has been evicted before it is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...graph.dtype import item_bytes
from ...graph.extent import ByExtent, extent_key
from ...graph.ir import Tensor
from ..iteration.alignment import Misaligned
from ..iteration.domain import At, Domain
from ..iteration.loops import Leaf, schedule
from ..kernel import InterPhaseReuse, KernelPlan, Stage
from ..shared_memory import shared_bytes
from ..slices import Cut, Slice, aligned_slice
from .mapping import RowMapping
from .registers import stage_words


def loaded_tile(stage: Stage, tensor: Tensor) -> Leaf | None:
    """Return the load by which every thread of a stage gets its elements of an input of the whole graph, in one pass.

    Return None if there is no such load, or if some threads have no element (in other than the last task).
    """
    copy = stage.slice.tensors.get(tensor)
    if copy is None or len(stage.schedule.passes) != 1 or stage.slice.replicated or copy.dtype == "bool":
        return None
    (p,) = stage.schedule.passes
    loaded = [leaf for leaf in p.loads if leaf[0] is copy and leaf[1].at is At.FULL]
    mapping = stage.row_mapping
    if not loaded or mapping.matrix is not None or not mapping.keep or mapping.of(p.columns).steps != 1:
        return None
    return loaded[0] if mapping.split or mapping.covered(p.columns) == p.columns else None


def shared_out_alike(one: Stage, other: Stage) -> bool:
    """Return whether equal threads of equal blocks load equal elements of inputs that both stages read whole."""

    def layout(stage: Stage) -> tuple[object, ...]:
        m, domain = stage.row_mapping, stage.alignment.domain
        columns = stage.schedule.passes[0].columns if stage.schedule.passes else 0
        return (
            extent_key(domain.rows), domain.flat, extent_key(columns), m.threads, m.rows_per_block, m.split,
            m.columns.get(columns), stage.tasks, stage.stride, stage.tiles, stage.offset,
        )  # fmt: skip

    return layout(one) == layout(other)


def adopt(piece: Slice, earlier: Sequence[Stage], cut: Cut, blocks: int, words: int) -> Stage | None:
    """Return a stage of a slice, shared out as an earlier one that loads the same input, None if it cannot be.

    A stage without reductions has a flat domain, which suits any shape. With the rows and threads of the stage that
    reduced the rows, each thread keeps its elements.

    Args:
        piece: a slice of a later phase.
        earlier: the stages of earlier phases.
        cut: the boundaries of slices of the whole graph.
        blocks: blocks of the launch.
        words: registers that a thread may spend.
    """
    reduces = piece.cross_row or any(op.is_reduce for op in piece.roots)
    if reduces or not piece.domain.flat or piece.replicated:
        return None
    for model in earlier:
        m = model.row_mapping
        if m.split or model.tiles != 1 or model.stride != blocks or model.tasks < blocks:
            continue
        if not any(loaded_tile(model, t) for t in piece.tensors):
            continue
        rows = Domain(model.alignment.domain.rows)
        try:
            like = aligned_slice(
                cut,
                piece.alignment.choices,
                piece.phase,
                rows,
                piece.roots,
                piece.cross_row,
                piece.stored,
                dominant=model.slice.dominant,
            )
        except Misaligned:
            continue
        mapped = _mapped_as(like, model, words)
        if mapped is not None and any(
            loaded_tile(mapped, t) and loaded_tile(model, t) for t in piece.tensors
        ):
            return mapped
    return None


def _mapped_as(piece: Slice, model: Stage, words: int) -> Stage | None:
    sched = schedule(piece.alignment, hoist=True)
    m = model.row_mapping
    if len(sched.passes) != 1 or sched.row_outputs or sched.passes[0].reduces:
        return None
    columns = sched.passes[0].columns
    if columns not in m.columns:
        return None
    mapping = RowMapping(m.threads, m.rows_per_block, ByExtent([(columns, m.of(columns))]))
    mapped = Stage(piece, sched, mapping, model.tasks, model.stride, offset=model.offset, unroll=model.unroll)
    while mapped.unroll > 1 and stage_words(mapped) > words:
        mapped = replace(mapped, unroll=mapped.unroll // 2)
    return mapped if stage_words(mapped) <= words else None


def retain(plan: KernelPlan, words: int) -> InterPhaseReuse | None:
    """Return the inputs to keep on chip in a plan whose blocks stay, None if there are none.

    Of all choices the one that saves most is taken.

    Args:
        plan: mapped, without retention.
        words: registers that a thread has.
    """
    if not plan.cooperative:
        return None
    retained: list[tuple[int, InterPhaseReuse]] = []
    for f, stages in enumerate(plan.phases):
        for first in stages:
            whole = first.stride == plan.shared_grid.blocks and first.tiles == 1 and not first.offset
            if first.slice.replicated or first.spread or not whole:
                continue
            later = [p for phase in plan.phases[f + 1 :] for p in phase if shared_out_alike(first, p)]
            readers: dict[tuple[Stage, ...], list[Tensor]] = {}
            for tensor in plan.graph.inputs:
                again = tuple(p for p in later if loaded_tile(first, tensor) and loaded_tile(p, tensor))
                if again:
                    readers.setdefault(again, []).append(tensor)
            for again, tensors in readers.items():
                kept = _kept(plan, (first, *again), tuple(tensors), words)
                if kept is not None:
                    retained.append((kept.tasks * kept.bytes * len(again), kept))
    return max(retained, key=lambda choice: choice[0])[1] if retained else None


def _kept(
    plan: KernelPlan, stages: tuple[Stage, ...], tensors: tuple[Tensor, ...], words: int
) -> InterPhaseReuse | None:
    device, first = plan.device, stages[0]
    (p,) = first.schedule.passes
    m = first.row_mapping.of(p.columns)
    elements = m.vector * m.chunks
    size = sum(item_bytes(t.dtype) for t in tensors) * elements * plan.shared_grid.threads
    room = min(
        device.shared_per_block,
        device.shared_per_sm // plan.shared_grid.blocks_per_sm - device.shared_reserved,
    )
    # Only tasks that every block has count. The last task of a flat domain may be incomplete.
    tasks = (first.tasks - 1 if first.row_mapping.split else first.tasks) // first.stride
    together = max(stage.unroll for stage in stages)
    shared = max(
        0, min(tasks, (room - shared_bytes(plan) - plan.device.choices.retained_slack_bytes) // size)
    )
    if shared > together:
        shared -= shared % together
    each = max(1.0, sum(item_bytes(t.dtype) for t in tensors) / 4 * elements)
    free = words - max(map(stage_words, stages)) - plan.device.choices.retained_addresses * (len(tensors) - 1)
    share = next(
        (share for phases, share in plan.device.choices.retained_share if len(plan.phases) <= phases), 0.0
    )
    registers = max(
        0, min(tasks - shared, plan.device.choices.retained_in_registers, int(free * share / each))
    )
    if not shared + registers:
        return None
    leaves = [tuple(leaf for t in tensors if (leaf := loaded_tile(stage, t))) for stage in stages]
    return InterPhaseReuse(tensors, stages, shared, registers, size, tuple(leaves))
