# SPDX-License-Identifier: Apache-2.0
"""Give the weights of matrix units a ring in shared memory, to which later steps are copied while one is multiplied.

A warp that loads its weights into registers waits for them, multiplies them, and only then loads the next ones. With a
ring it begins to copy the weights of a later step, and multiplies those that have arrived. A warp multiplies what its
own lanes have copied, so no barrier of the block is needed.

The copies of a phase's first steps begin before the grid barrier in front of it, since no kernel writes its own
weights. The idea is that of Hazy Research's decoder, "Look Ma, No Bubbles" (2025), which copies pages of weights so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..kernel import KernelPlan, Stage
from ..layout import WeightRing
from ..shared_memory import shared_bytes
from .matrix_units import MatrixUnits

COPY_BYTES, ALIGNED_BYTES = 16, 64


def with_weight_ring(plan: KernelPlan) -> KernelPlan:
    """Return a grid-wide plan whose products on matrix units have a ring, as far as shared memory has room.

    A phase with several such products has none, since they would use the ring at once. Factors have one type. A block's
    tasks follow each other by the stride, since the first weights of the next task are copied at the end of a task.

    Args:
        plan: a plan with its mapping and what it retains, before the layout of its shared memory.
    """
    grid, device = plan.shared_grid, plan.device
    dtypes = {units.dtype for units in _units(plan.phases)}
    if len(dtypes) != 1:
        return plan
    factors = max(units.shared_bytes(grid.threads // device.warp) for units in _units(plan.phases))
    empty = WeightRing(-(-factors // ALIGNED_BYTES) * ALIGNED_BYTES, 0, dtypes.pop())
    room = min(device.shared_per_block, device.shared_per_sm // grid.blocks_per_sm)
    room -= shared_bytes(replace(plan, ring=empty)) + device.choices.shared_slack_bytes
    phases = []
    for stages in plan.phases:
        alone = sum(stage.row_mapping.matrix is not None for stage in stages) == 1
        phases.append(tuple(_with_ring(s, room, plan) if alone and _in_order(s, plan) else s for s in stages))
    most = max(units.ring_bytes(grid.threads) for units in _units(phases))
    return replace(plan, phases=tuple(phases), ring=replace(empty, bytes=most)) if most else plan


def _units(phases: Sequence[Sequence[Stage]]) -> list[MatrixUnits]:
    found = [stage.row_mapping.matrix for stages in phases for stage in stages]
    return [each for each in found if each is not None]


def _in_order(stage: Stage, plan: KernelPlan) -> bool:
    """Return whether the tasks of each block are those from its number on, by the stride."""
    kept = plan.retention is not None and stage in plan.retention.stages
    others = stage.backwards or stage.spread or stage.slice.replicated or kept
    return not others and stage.tiles == stage.unroll == 1


def _with_ring(stage: Stage, room: int, plan: KernelPlan) -> Stage:
    """Return the stage with a ring of as many steps as fit, which replaces fetches into the cache.

    Steps have half of the chunks if possible: a ring's weights are in flight anyway. Zero points are loaded at their
    use, so a step would wait for those. Weights of 16 bits need no conversion, and are read as fast without a ring.
    """
    units, threads = stage.row_mapping.matrix, plan.shared_grid.threads
    if units is None or units.lane_bytes % COPY_BYTES or units.packed.own_zero is not None:
        return stage
    if units.packed.bits > plan.device.choices.ring_bits:
        return stage
    half = units.chunks // 2
    if half and units.chunks % 2 == 0 and (units.per_scale == 0 or half % units.per_scale == 0):
        own = -(-units.row_chunks // units.slices)
        units = replace(units, chunks=half, steps=-(-own // half))
    steps = min(plan.device.choices.ring_steps, max(2, units.steps), room // (units.step_bytes * threads))
    if steps < 2:
        return stage
    units = replace(units, ring=steps, ahead=0)
    return replace(stage, mapping=replace(stage.row_mapping, matrix=units))
