# SPDX-License-Identifier: Apache-2.0
"""What a plan moves and holds: bytes of device memory against the least possible, and shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from .. import compat
from ..graph.dtype import compute_dtype, item_bytes
from ..graph.extent import Extent, product
from ..graph.ir import Tensor
from .domain import At
from .mapping import stage_bytes
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
    """Count the kernel's traffic; an input that several passes load counts each time, unless it is kept."""
    times: dict[Tensor, int] = dict.fromkeys(plan.graph.inputs, 0)
    for p in plan.schedule.passes:
        for tensor, point in p.loads:
            kept = (tensor, point) in plan.schedule.kept_loads
            first = not any(
                (tensor, point) in q.loads for q in plan.schedule.passes[: plan.schedule.passes.index(p)]
            )
            if point.at is At.FULL and (first or not kept):
                times[tensor] += 1
    read = total(product([bytes_of(t), max(1, n)]) for t, n in times.items())
    written = total(bytes_of(t) for t in plan.graph.outputs)
    least = total([*(bytes_of(t) for t in plan.graph.inputs), written])
    return Traffic(read, written, least)


def total(extents: object) -> Extent:
    """The sum of extents."""
    number, symbols = 0, None
    for e in extents:  # type: ignore[attr-defined]
        if isinstance(e, int):
            number += e
        else:
            symbols = e if symbols is None else symbols + e
    if symbols is None:
        return number
    return symbols if number == 0 else symbols + compat.const(number, "int64")


def shared_bytes(plan: StitchPlan) -> int:
    """Shared memory of a block: one partial result per warp and reduction, where a row spans several warps.

    The partials of a pass are dead once the next pass has its own, so that passes share the space. Rows too long for
    registers keep their values there as well.
    """
    m = plan.mapping
    if not plan.device.is_gpu or m.threads <= 32:
        return 0
    warps = m.block // 32
    staged = stage_bytes(plan.schedule, m) if m.shared else 0
    sizes = [
        [max(4, item_bytes(compute_dtype(op.output.dtype))) for op in p.reduces] for p in plan.schedule.passes
    ]
    return staged + warps * max(map(sum, sizes), default=0)
