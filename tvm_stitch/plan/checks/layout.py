# SPDX-License-Identifier: Apache-2.0
"""Check the layout of a plan's shared memory: every value has a buffer, and no two slots overlap.

The checks compare buffers with the mapping and the loop nest of their stage. They share no code with the planner.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.dtype import compute_dtype, exchanged_dtype, item_bytes
from ...graph.extent import static_extent
from ...graph.ir import Tensor
from ..gpu.mapping import CrossBlockReduction
from ..gpu.occupancy import OPT_IN_BYTES
from ..iteration.loops import Leaf
from ..kernel import KernelPlan, Stage
from ..layout import ClusterSlots, CopiedPatch, LoadedPatch, SharedBuffer


def layout_problems(plan: KernelPlan) -> Iterator[str]:
    """Yield one line for everything that is wrong with the layout of a plan for a GPU."""
    if not plan.device.is_gpu:
        return
    own = [(f"a stage of phase {f}", stage) for f, stages in enumerate(plan.phases) for stage in stages]
    own += [("a variant", variant.stage) for variant in plan.variants]
    for where, stage in own:
        for line in _of_stage(plan, stage):
            yield f"{where}: {line}"
    yield from _own(plan)
    yield from _retained(plan)
    yield from _padding(plan, [stage for _, stage in own])
    if plan.grid is not None:  # one kernel declares them all
        names = [buffer.name for stage in plan.stages for buffer in stage.layout.buffers]
        if len(set(names)) != len(names):
            yield "two stages have shared buffers of one name"


def _of_stage(plan: KernelPlan, stage: Stage) -> Iterator[str]:
    layout, m = stage.layout, stage.row_mapping
    for leaf, patch in layout.loaded_patches.items():
        yield from _loaded(stage, leaf, patch)
    for leaf, copied in layout.copied_patches.items():
        yield from _copied(stage, leaf, copied)
    if lost := set(m.transposed) - layout.loaded_patches.keys() - layout.copied_patches.keys():
        yield f"{len(lost)} transposed inputs have no patch"
    if m.shared:
        kept = {*stage.schedule.kept_values, *stage.schedule.kept_loads}
        if kept - layout.staged.keys() - layout.copies.keys():
            yield "a value that stays in shared memory has no buffer"
        for (_, point), buffer in (*layout.staged.items(), *layout.copies.items()):
            yield from _holds(buffer, m.block_columns(point.columns))
    for (_, point), buffer in layout.shared_columns.items():
        yield from _holds(buffer, m.block_columns(point.columns))
    if (m.exchange is CrossBlockReduction.CLUSTER) != (layout.slots is not None):
        yield f"blocks exchange by {m.exchange.value}, and the layout has {layout.slots or 'no slots'}"
    if layout.slots is not None:
        yield from _slots(plan, stage, layout.slots)
    yield from _column_sums(plan, stage)
    together = [*(patch.buffer for patch in layout.copied_patches.values()), *layout.shared_columns.values()]
    most = max([sum(buffer.bytes for buffer in together), *(buffer.bytes for buffer in layout.buffers)])
    if most > plan.shared.dynamic:
        yield f"buffers of {most} B in {plan.shared.dynamic} B of dynamic shared memory"


def _holds(buffer: SharedBuffer, elements: int) -> Iterator[str]:
    if buffer.elements < elements:
        yield f"{buffer.name} of {buffer.elements} elements is to hold {elements}"


def _loaded(stage: Stage, leaf: Leaf, patch: LoadedPatch) -> Iterator[str]:
    """Check that rows of a patch do not overlap, and that every thread has whole rounds of loads."""
    m = stage.row_mapping
    columns, of_thread = m.block_columns(leaf[1].columns), m.of(leaf[1].columns)
    if patch.pitch < columns:
        yield f"rows of {columns} columns in {patch.buffer.name}, {patch.pitch} elements apart"
    if of_thread.chunks * of_thread.vector % patch.loads_at_once:
        yield f"{patch.loads_at_once} loads at once do not divide a thread's columns"
    yield from _holds(patch.buffer, m.rows_per_block * patch.pitch)


def _copied(stage: Stage, leaf: Leaf, patch: CopiedPatch) -> Iterator[str]:
    """Check that pieces have positions of their own, and that all columns are copied."""
    m, pieces = stage.row_mapping, patch.pieces
    columns, vector = m.block_columns(leaf[1].columns), m.of(leaf[1].columns).vector
    if pieces.rows * pieces.column != m.rows_per_block:
        yield f"{pieces.column} pieces of {pieces.rows} rows are not {m.rows_per_block} rows"
    positions = {
        (column * pieces.column + piece) ^ (column // vector % pieces.positions)
        for column in range(vector * pieces.positions)
        for piece in range(pieces.column)
    }
    if positions != set(range(vector * pieces.positions * pieces.column)):
        yield f"pieces of {patch.buffer.name} overlap, or leave their columns"
    if patch.columns_at_once * patch.copies < columns:
        yield f"{patch.copies} copies of {patch.columns_at_once} columns are to fill {columns}"
    if not 0 <= patch.early <= patch.copies:
        yield f"{patch.early} of {patch.copies} copies begin early"
    yield from _holds(patch.buffer, m.rows_per_block * patch.columns_at_once * patch.copies)


def _slots(plan: KernelPlan, stage: Stage, slots: ClusterSlots) -> Iterator[str]:
    """Check that every reduction of every row has slots of its own, and every level a barrier."""
    m = stage.row_mapping
    reduces = [op for p in stage.schedule.passes for op in p.reduces]
    if set(slots.position) != set(reduces) or sorted(slots.position.values()) != list(range(len(reduces))):
        yield "reductions share the slots of an exchange"
    if set(slots.level) != set(reduces) or set(slots.level.values()) != set(range(slots.levels)):
        yield "levels of reductions without a barrier"
    if (slots.iterations, slots.rows, slots.blocks) != (m.iterations, m.rows_per_block, m.row_splits):
        yield f"slots for {slots.iterations} turns of {slots.rows} rows and {slots.blocks} blocks"
    if slots.warps * 32 < m.threads:
        yield f"slots for {slots.warps} warps of {m.threads} threads a row"
    if any(8 * item_bytes(exchanged_dtype(op.output.dtype)) > slots.bits for op in reduces):
        yield f"partial results are wider than slots of {slots.bits} bits"
    if slots.bytes > plan.shared.static:
        yield f"slots of {slots.bytes} B in {plan.shared.static} B of static shared memory"


def _column_sums(plan: KernelPlan, stage: Stage) -> Iterator[str]:
    """Check that the rows of a block have a buffer for every reduction across rows."""
    m, sums = stage.row_mapping, stage.layout.column_sums
    if m.rows_per_block == 1:
        return
    for columns, ops in stage.column_reductions.items():
        if set(ops) - sums.keys():
            yield f"sums of {columns} columns have no buffer"
            continue
        for op in ops:
            yield from _holds(sums[op], m.block * m.of(columns).vector)
        if sum(sums[op].bytes for op in ops) > plan.shared.dynamic:
            yield f"sums of {columns} columns do not fit {plan.shared.dynamic} B of dynamic shared memory"


def _own(plan: KernelPlan) -> Iterator[str]:
    """Check that every value that each block has lies in a buffer, without loss, while it is read."""
    if plan.own.keys() != plan.crossing.shared.keys():
        yield f"{len(plan.own)} buffers for {len(plan.crossing.shared)} values that every block has"
        return
    live: dict[tuple[str, int], Tensor] = {}
    for tensor, buffer in plan.own.items():
        yield from _holds(buffer, static_extent(tensor.size))
        if buffer.dtype not in (tensor.dtype, compute_dtype(tensor.dtype)):
            yield f"{tensor!r} is kept as {buffer.dtype}"
        reading = [f for f, stages in enumerate(plan.phases) for s in stages if tensor in s.slice.tensors]
        for f in range(plan.crossing.shared[tensor], max(reading, default=0) + 1):
            other = live.setdefault((buffer.name, f), tensor)
            if other is not tensor:
                yield f"{tensor!r} and {other!r} are both in {buffer.name} in phase {f}"


def _retained(plan: KernelPlan) -> Iterator[str]:
    """Check that retained inputs have the loads of their stages, and buffers for all tasks in shared memory."""
    kept = plan.retention
    if kept is None:
        return
    if len(kept.leaves) != len(kept.stages):
        yield f"loads of {len(kept.leaves)} stages are retained in {len(kept.stages)}"
    for stage, leaves in zip(kept.stages, kept.leaves):
        if [leaf[0] for leaf in leaves] != [stage.slice.tensors.get(tensor) for tensor in kept.tensors]:
            yield "a stage does not load what is retained"
    if sum(buffer.bytes for buffer in kept.buffers) != kept.shared_bytes:
        yield f"buffers of {sum(b.bytes for b in kept.buffers)} B retain {kept.shared_bytes} B"


def _padding(plan: KernelPlan, stages: list[Stage]) -> Iterator[str]:
    """Check that dynamic shared memory alone exceeds the usual limit if all shared memory does.

    Only then does TVM's runtime ask a driver for more memory.
    """
    shared = plan.shared
    if shared.dynamic and shared.static + shared.dynamic > OPT_IN_BYTES:
        if shared.dynamic + shared.padding < OPT_IN_BYTES:
            yield f"{shared.dynamic} + {shared.padding} B of dynamic shared memory are not asked for"
    if not shared.padding or plan.ring is not None:  # the ring's buffer gets the padding when it is allocated
        return
    if plan.retention is not None and not plan.retention.buffers:
        return
    groups = [stage.layout.buffers for stage in stages]
    if plan.retention is not None:
        groups = [list(plan.retention.buffers)]
    if any(buffers and all(b.unused < shared.padding for b in buffers) for buffers in groups):
        yield f"no buffer has the {shared.padding} B of padding"
