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
