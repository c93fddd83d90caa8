# SPDX-License-Identifier: Apache-2.0
"""What a plan moves and holds: bytes of device memory against the least possible, and shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.dtype import item_bytes
from ..graph.extent import Extent, product, total
from ..graph.ir import Tensor
from .gpu.tile import partial_bytes, stage_bytes
from .iteration.loops import Leaf, is_streamed
from .plan import StitchPlan


@dataclass(frozen=True)
class Traffic:
    """Bytes read and written by a kernel, and the least any kernel could: each input and output once.

    Expressions where a shape is symbolic.
    """

    read: Extent
    written: Extent
    least: Extent


def bytes_of(tensor: Tensor) -> Extent:
    """Size of a tensor in memory."""
    return product([tensor.size, item_bytes(tensor.dtype)])


def traffic(plan: StitchPlan) -> Traffic:
    """Count the kernel's traffic; an input that several passes load counts each time, unless it is kept.

    What blocks exchange through scratch stays in the L2 cache and is not counted.
    """
    rows, kept = plan.alignment.domain.rows, plan.schedule.kept_loads
    times: dict[Leaf, int] = {}
    for p in plan.schedule.passes:
        for leaf in p.loads:
            if is_streamed(rows, leaf) and not (leaf in times and leaf in kept):
                times[leaf] = times.get(leaf, 0) + 1
    # Different places of one tensor are taken for different parts of it, such as the slices of a gate.
    most = {t: max([1, *(n for (u, _), n in times.items() if u is t)]) for t in plan.graph.inputs}
    read = total(product([bytes_of(t), n]) for t, n in most.items())
    written = total(bytes_of(t) for t in plan.graph.outputs)
    least = total([*(bytes_of(t) for t in plan.graph.inputs), written])
    return Traffic(read, written, least)


def shared_bytes(plan: StitchPlan) -> int:
    """Shared memory of a block: partial results, and the values that are kept there."""
    if not plan.device.is_gpu:
        return 0
    m = plan.row_mapping
    staged = stage_bytes(plan.schedule, m) if m.shared else 0
    return staged + partial_bytes(plan.schedule, m)
