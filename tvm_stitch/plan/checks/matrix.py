# SPDX-License-Identifier: Apache-2.0
"""Check products on matrix units: every chunk of every row has its warp, and shared memory holds all factors.

The checks recount from the mapping and the pass. They share no code with the planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...graph.dtype import item_bytes
from ...graph.ir import Tensor
from ..kernel import KernelPlan, Stage


def matrix_problems(plan: KernelPlan) -> Iterator[str]:
    """Yield one line for everything that is wrong with a plan's products on matrix units."""
    if not plan.device.is_gpu:
        return
    for number, stages in enumerate(plan.phases):
        for stage in stages:
            for line in _of_stage(plan, stage):
                yield f"a stage of phase {number}: {line}"


def multiplied_only(readers: Sequence[Stage], tensor: Tensor) -> bool:
    """Return whether all stages that read a value multiply it on matrix units of its type, and do nothing else."""
    for stage in readers:
        units, own = stage.row_mapping.matrix, stage.slice.tensors[tensor]
        uses = [op for op in stage.graph.operators if own in op.inputs]
        if units is None or units.dtype != tensor.dtype or not all(op.contraction for op in uses):
            return False
    return bool(readers)


def _of_stage(plan: KernelPlan, stage: Stage) -> Iterator[str]:
    m = stage.row_mapping
    if m.matrix is None:
        return
    u, warps = m.matrix, m.block // plan.device.warp
    rows = len(u.weights) * len(u.weights[0])  # of weights, for a row of the domain
    if warps % u.slices or 16 * plan.device.warp * u.slices != m.threads * 16 * (16 // rows):
        yield f"{u.slices} of {warps} warps share 16 rows of weights, and {m.threads} threads a row of the domain"
    columns = 4 * 8 * u.lane_bytes // u.packed.bits  # of a chunk
    if u.slices * u.steps * u.chunks * columns < int(u.sums.columns) or int(u.sums.columns) % columns:
        yield f"{u.slices} x {u.steps} x {u.chunks} chunks of {columns} columns are to cover {u.sums.columns}"
    if u.packed.scale is not None and max(u.packed.group, columns) % min(u.packed.group, columns):
        yield f"groups of {u.packed.group} columns in chunks of {columns}"
    if u.per_scale and (u.chunks % u.per_scale or u.per_scale * columns > max(u.packed.group, columns)):
        yield f"{u.per_scale} of {u.chunks} chunks share a scale of {u.packed.group} columns"
    taken = {op for factors in u.results for products in factors for op in products}
    if taken != set(u.sums.reduces):
        yield f"{len(taken)} sums are taken of {len(u.sums.reduces)}"
    buffer = stage.layout.matrix
    least = 4 * warps * 16 * len(u.factors) + 2 * (len(u.factors) * int(u.sums.columns) + 8)
    if buffer is None or buffer.elements * item_bytes(buffer.dtype) < least:
        yield f"factors and sums of {least} B are in {buffer or 'no buffer'}"
    yield from _ring(plan, stage, least)


def _ring(plan: KernelPlan, stage: Stage, factors: int) -> Iterator[str]:
    """Check that the ring holds a stage's steps behind so many bytes of factors, and that no other stage uses it."""
    u, ring = stage.row_mapping.matrix, plan.ring
    assert u is not None
    if ring is None:
        if u.ring:
            yield f"the plan has no ring for {u.ring} steps"
        return
    if ring.start < factors or ring.start % 16 or ring.dtype != u.dtype:
        yield f"factors and sums of {factors} B of {u.dtype} are in front of {ring}"
    if ring.start + ring.bytes > plan.shared.dynamic:
        yield f"{ring} exceeds {plan.shared.dynamic} B of dynamic shared memory"
    if not u.ring:
        return
    if u.ring < 2 or u.lane_bytes % 16 or u.packed.own_zero is not None:
        yield f"a ring of {u.ring} steps, of lanes that take {u.lane_bytes} B of a row"
    if (needed := u.ring * u.chunks * 2 * u.lane_bytes * stage.row_mapping.block) > ring.bytes:
        yield f"{u.ring} steps of {needed} B are in {ring}"
    kept = plan.retention is not None and stage in plan.retention.stages
    if kept or stage.backwards or stage.spread or stage.slice.replicated or stage.tiles * stage.unroll > 1:
        yield "tasks whose weights are copied ahead do not follow each other by the stride"
    (others,) = [stages for stages in plan.phases if stage in stages]
    if sum(other.row_mapping.matrix is not None for other in others) > 1:
        yield "several products of a phase share a ring"
