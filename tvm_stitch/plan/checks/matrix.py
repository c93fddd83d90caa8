# SPDX-License-Identifier: Apache-2.0
"""Check products on matrix units: every chunk of every row has its warp, and shared memory holds all factors.

The checks recount from the mapping and the pass. They share no code with the planner.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.dtype import item_bytes
from ..kernel import KernelPlan, Stage


def matrix_problems(plan: KernelPlan) -> Iterator[str]:
    """Yield one line for everything that is wrong with a plan's products on matrix units."""
    if not plan.device.is_gpu:
        return
    for number, stages in enumerate(plan.phases):
        for stage in stages:
            for line in _of_stage(plan, stage):
                yield f"a stage of phase {number}: {line}"


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
