# SPDX-License-Identifier: Apache-2.0
"""Task splitting: how many blocks share a row, and how they combine what they reduce (AStitch 4.3)."""

from __future__ import annotations

from ..config import StitchConfig
from ..device import DeviceModel
from ..graph.dtype import compute_dtype, item_bytes
from ..graph.extent import Extent
from ..graph.ir import Operator
from .alignment import Alignment
from .mapping import Exchange, RowMapping, map_rows
from .passes import Schedule
from .scratch import Scratch


def choose_mapping(
    alignment: Alignment, sched: Schedule, device: DeviceModel, config: StitchConfig
) -> RowMapping:
    """The thread mapping of a stitch op on a GPU."""
    return map_rows(alignment, sched, device)


def partial_dtype(op: Operator) -> str:
    """The dtype in which a block's part of a reduction travels to other blocks (4 or 8 bytes)."""
    dtype = compute_dtype(op.output.dtype)
    return dtype if item_bytes(dtype) >= 4 else "int32"


def slot_bytes(sched: Schedule) -> int:
    """Bytes of a slot of a cluster's exchange: 8 where a reduction accumulates in 8, else 4."""
    return max([4, *(item_bytes(partial_dtype(op)) for p in sched.passes for op in p.reduces)])


def exchange_bytes(sched: Schedule, mapping: RowMapping) -> int:
    """Shared memory of a block that a cluster's exchange takes: a slot for each reduction and segment."""
    if mapping.exchange is not Exchange.CLUSTER:
        return 0
    return slot_bytes(sched) * mapping.segments * sum(len(p.reduces) for p in sched.passes)


def partial_scratch(sched: Schedule, rows: Extent, mapping: RowMapping) -> dict[Operator, Scratch]:
    """For each reduction the scratch of (rows, segments) partial results that an exchange by grid barrier needs."""
    if mapping.exchange is not Exchange.GRID:
        return {}
    reduces = [op for p in sched.passes for op in p.reduces]
    shape = (rows, mapping.segments)
    return {op: Scratch(f"partials_{i}", shape, partial_dtype(op)) for i, op in enumerate(reduces)}
