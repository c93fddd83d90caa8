# SPDX-License-Identifier: Apache-2.0
"""What a grid-wide plan moves and holds: bytes of device memory part by part, and shared memory of a block."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.dtype import compute_dtype, item_bytes
from ..graph.extent import ByExtent, extent_key
from ..graph.ir import Operator, Tensor
from .grid_plan import GridPart, GridPlan
from .iteration.domain import At, Point
from .iteration.loops import Leaf, is_streamed
from .memory import Traffic


def grid_traffic(plan: GridPlan) -> Traffic:
    """Count the bytes of all phases: an input that two parts read counts twice, and what crosses in scratch counts.

    The least is that of any kernel: each input and each output once.
    """
    moved = [part_traffic(plan, part) for phase in plan.phases for part in phase]
    read = sum(_bytes(m.read) for m in moved) + sum(finished_bytes(plan, f) for f in range(len(plan.phases)))
    written = sum(_bytes(m.written) for m in moved) + sum(
        _size(op.output) for op in plan.partition.scalars if op.output in plan.graph.outputs
    )
    least = sum(_size(t) for t in [*plan.graph.inputs, *plan.graph.outputs])
    return Traffic(read, written, least)


def part_traffic(plan: GridPlan, part: GridPart) -> Traffic:
    """The bytes that one part reads and writes; the least is each tensor once.

    A tensor of which a part reads some elements only counts with these; what all rows share (a scale, a bias) counts
    once, since it stays in the caches.
    """
    elements = {t: _elements_read(part, t) for t in part.graph.inputs if t not in _totals(plan, part)}
    whole = {copy: t for t, copy in part.part.tensors.items()}
    read = sum(n * _item(plan, whole[t]) for t, n in elements.items()) - _retained_bytes(plan, part)
    once = sum(min(n, int(t.size)) * _item(plan, whole[t]) for t, n in elements.items())
    stored = [] if part.part.replicated else part.part.stored
    written = sum(int(op.output.size) * _item(plan, op.output) for op in stored)
    written += sum(_size(plan.partition.partials[op]) for op in part.part.folds)
    return Traffic(read, written, once + written)


def _retained_bytes(plan: GridPlan, part: GridPart) -> int:
    """What all blocks find on chip of what a part reads."""
    kept = plan.retention
    return plan.blocks * kept.tasks * kept.bytes if kept is not None and part in kept.parts[1:] else 0


def finished_bytes(plan: GridPlan, phase: int) -> int:
    """The partial results that reductions to one result are finished from at the start of a phase.

    Every block reads all of them, but only the first finds them outside the second-level cache.
    """
    scalars = [op for op, f in plan.partition.scalars.items() if f == phase - 1]
    return sum(_size(plan.partition.partials[op]) for op in scalars)


def grid_shared_bytes(plan: GridPlan) -> int:
    """Shared memory of a block: partial results of the reductions, and of the sums across rows that a block combines.

    Buffers of one part at a time are in use; those of different kinds (static and dynamic) do not share memory. What
    is retained stays besides.
    """
    static = dynamic = 0
    for phase in plan.phases:
        for part in phase:
            warps = plan.threads // 32
            if part.mapping.threads > 32:
                static = max([static, *(warps * _words(p.reduces) for p in part.schedule.passes)])
            folds = [op for op, _ in part.schedule.folds]
            static = max(static, warps * _words([op for op in folds if int(op.output.size) == 1]))
            dynamic = max(dynamic, _staged_bytes(part))
    for f in range(len(plan.phases)):
        done = [op for op, at in plan.partition.scalars.items() if at == f]
        static = max(static, plan.threads // 32 * _words(done))
    own = sum(int(t.size) * max(4, item_bytes(compute_dtype(t.dtype))) for t in plan.partition.shared)
    kept = plan.retention.shared_bytes if plan.retention is not None else 0
    return static + dynamic + own + kept


def _bytes(extent: object) -> int:
    """A static number of bytes."""
    assert isinstance(extent, int)
    return extent


def _staged_bytes(part: GridPart) -> int:
    """What the slots of a block put side by side of one chunk of column sums."""
    if part.mapping.rows_per_block == 1:
        return 0
    most = 0
    columns = [(op, point) for op, point in part.schedule.folds if int(op.output.size) != 1]
    for extent in ByExtent((point.columns, None) for _, point in columns):
        ops = [op for op, point in columns if extent_key(point.columns) == extent_key(extent)]
        lanes = part.mapping.block * part.mapping.of(extent).vector
        most = max(most, lanes * sum(max(4, item_bytes(compute_dtype(op.output.dtype))) for op in ops))
    return most


def _words(ops: Sequence[Operator]) -> int:
    return sum(max(4, item_bytes(compute_dtype(op.output.dtype))) for op in ops)


def _item(plan: GridPlan, tensor: Tensor) -> int:
    """Bytes of an element in memory: scratch is as wide as what is computed with."""
    return item_bytes(compute_dtype(tensor.dtype) if tensor in plan.place else tensor.dtype)


def _size(tensor: Tensor) -> int:
    return int(tensor.size) * item_bytes(tensor.dtype)


def _totals(plan: GridPlan, part: GridPart) -> set[Tensor]:
    """Results that every block holds in registers since it finished them."""
    return {part.part.tensors[op.output] for op in plan.partition.scalars if op.output in part.part.tensors}


def _elements_read(part: GridPart, tensor: Tensor) -> int:
    """Elements of an input that a part reads from device memory."""
    rows, sched = part.alignment.domain.rows, part.schedule
    streamed: dict[Leaf, int] = {}
    for i, p in enumerate(sched.passes):
        for leaf in p.loads:
            if leaf[0] is not tensor or not is_streamed(rows, leaf):
                continue
            if leaf not in sched.kept_loads or not any(leaf in q.loads for q in sched.passes[:i]):
                streamed[leaf] = streamed.get(leaf, 0) + 1
    again = sum(times * _points(part, tensor, point) for (_, point), times in streamed.items())
    others: dict[Point | None, int] = {}
    for (op, at), points in part.alignment.reads.items():
        for access, point in zip(op.accesses, points):
            if access.tensor is tensor and (tensor, point) not in streamed:
                others[point] = _points(part, tensor, at if point is None else point)
    return max(again, min(int(tensor.size), sum(others.values())))


def _points(part: GridPart, tensor: Tensor, point: Point) -> int:
    """Elements of a tensor that the whole domain reads at a point."""
    rows = int(part.alignment.domain.rows)
    columns = int(point.columns) if point.per_column else 1
    found = {At.FULL: rows * columns, At.ROW: rows, At.COLUMN: columns, At.ONE: 1, At.INDEX: rows * columns}
    return min(int(tensor.size), found[point.at])
