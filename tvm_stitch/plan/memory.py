# SPDX-License-Identifier: Apache-2.0
"""Bytes of device memory that a plan moves, and the least that any kernel could move."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..graph.dtype import compute_dtype, item_bytes
from ..graph.extent import size_of
from ..graph.ir import StitchGraph, Tensor
from ..graph.sizes import Size, static_size
from .gpu.mapping import RowMapping, Storage
from .iteration.alignment import op_points
from .iteration.domain import At, Point
from .iteration.loops import Leaf, is_streamed
from .kernel import KernelPlan, Stage


@dataclass(frozen=True)
class Traffic:
    """Bytes read and written, and the least possible number: each element that is used counts once."""

    read: Size
    written: Size
    least: Size

    @property
    def moved(self) -> Size:
        """All bytes."""
        return self.read + self.written


def bytes_of(tensor: Tensor) -> Size:
    """Return the size of a tensor in memory."""
    return size_of(tensor.size) * item_bytes(tensor.dtype)


def least_bytes(graph: StitchGraph) -> Size:
    """Return the bytes that any kernel for a graph moves: the used elements of each input, and each output, once.

    Of an embedding's table only the rows that are looked up are used. A few samples of a value that is computed element
    by element use as few elements of its operands.
    """
    used: dict[Tensor, Size] = {}
    for op in reversed(graph.operators):
        points = size_of(op_points(op))
        if not op.is_reduce and op.output not in graph.outputs:
            points = _least(points, used.get(op.output, 0))
        for tensor in op.inputs:
            times = len({tuple(map(str, a.indices)) for a in op.accesses if a.tensor is tensor})
            used[tensor] = _least(size_of(tensor.size), used.get(tensor, 0) + points * times)
    read = (used.get(tensor, 0) * item_bytes(tensor.dtype) for tensor in graph.inputs)
    return sum([*read, *map(bytes_of, graph.outputs)])


# -- device memory -----------------------------------------------------------------------------------------------
def traffic(plan: KernelPlan) -> Traffic:
    """Count the bytes of all stages. Tensors that several stages read count each time, unless they are kept.

    Values that cross in scratch count. Exchanges of blocks that share a row do not, because they stay in the L2
    cache. Rows of symbolic length are assumed to be such as a variant keeps on chip.
    """
    stages = [plan.variants[-1].stage] if plan.variants else plan.stages
    moved = [stage_traffic(plan, stage) for stage in stages]
    totals = [op.output for op in plan.crossing.scalars if op.output in plan.graph.outputs]
    read = sum([*(m.read for m in moved), *(finished_bytes(plan, f) for f in range(len(plan.phases)))])
    written = sum([*(m.written for m in moved), *(bytes_of(t) for t in totals)])
    return Traffic(read, written, least_bytes(plan.graph))


def stage_traffic(plan: KernelPlan, stage: Stage) -> Traffic:
    """Return the bytes that one stage reads and writes. The least is each tensor once.

    If a stage reads some elements of a tensor only, only these count. Inputs that all rows share (a scale, a bias)
    count once, since they stay in the caches.
    """
    whole = {copy: t for t, copy in stage.slice.tensors.items()}
    totals, points = _totals(plan, stage), _points_read(stage)
    elements = {t: _elements_read(stage, t, points.get(t, ())) for t in stage.graph.inputs if t not in totals}
    sizes = {t: _item(plan, whole[t]) for t in elements}
    read = sum(n * sizes[t] for t, n in elements.items())
    once = sum(_least(n, size_of(t.size)) * sizes[t] for t, n in elements.items())
    kept = _retained_bytes(plan, stage)
    stored = [] if stage.slice.replicated else stage.slice.stored
    written = sum(
        [
            *(size_of(op.output.size) * _item(plan, op.output) for op in stage.slice.copies if op in stored),
            *(bytes_of(plan.crossing.partials[op]) for op in stage.slice.cross_row),
        ]
    )
    return Traffic(read - kept, written, once + written)


def _retained_bytes(plan: KernelPlan, stage: Stage) -> int:
    """Return the bytes that a stage reads and that all blocks find on chip."""
    kept = plan.retention
    is_retained = kept is not None and stage in kept.stages[1:]
    return plan.shared_grid.blocks * kept.tasks * kept.bytes if kept is not None and is_retained else 0


def finished_bytes(plan: KernelPlan, phase: int) -> Size:
    """Return the bytes of the partial results from which a phase finishes reductions to one result at its start.

    Every block reads all of them, but only the first finds them outside the second-level cache.
    """
    scalars = [op for op, f in plan.crossing.scalars.items() if f == phase - 1]
    return sum(bytes_of(plan.crossing.partials[op]) for op in scalars)


def _item(plan: KernelPlan, tensor: Tensor) -> int:
    """Return the bytes of an element in memory. Scratch is as wide as the dtype of computation."""
    return item_bytes(compute_dtype(tensor.dtype) if tensor in plan.scratch_of else tensor.dtype)


def _totals(plan: KernelPlan, stage: Stage) -> set[Tensor]:
    """Return the results that every block holds in registers since it finished them."""
    tensors = stage.slice.tensors
    return {tensors[op.output] for op in plan.crossing.scalars if op.output in tensors}


def _points_read(stage: Stage) -> dict[Tensor, list[tuple[Point, Point | None]]]:
    """Return, by tensor, the points at which operators read it, each with the operator's own."""
    points_of: dict[Tensor, list[tuple[Point, Point | None]]] = {}
    for (op, at), points in stage.alignment.reads.items():
        for access, point in zip(op.accesses, points):
            points_of.setdefault(access.tensor, []).append((at, point))
    return points_of


def _elements_read(stage: Stage, tensor: Tensor, points: Iterable[tuple[Point, Point | None]]) -> Size:
    """Return the elements of an input that a stage reads from device memory.

    Inputs of symbolic size count whole, as often as they are read.
    """
    rows, sched, cached = stage.alignment.domain.rows, stage.schedule, _from_cache(stage)
    streamed: dict[Leaf, int] = {}
    for i, p in enumerate(sched.passes):
        for leaf in p.loads:
            if leaf[0] is not tensor or not is_streamed(rows, leaf):
                continue
            kept = cached or leaf in sched.kept_loads
            if not kept or not any(leaf in q.loads for q in sched.passes[:i]):
                streamed[leaf] = streamed.get(leaf, 0) + 1
    others: dict[Point, None] = {}
    for at, point in points:
        if (tensor, point) not in streamed:
            others[at if point is None else point] = None
    again = [times * _points(stage, tensor, point) for (_, point), times in streamed.items()]
    once = [_points(stage, tensor, point) for point in others]
    # Different points of one tensor are assumed to be different slices of it, such as the slices of a gate.
    whole = size_of(tensor.size) * max([1, *streamed.values()])
    if not all(isinstance(n, int) for n in [whole, *again, *once]):
        return whole
    return min(static_size(whole), max(static_size(sum(again)), static_size(sum(once))))


def _from_cache(stage: Stage) -> bool:
    """Return whether inputs that a stage reads again come from a cache and not from device memory."""
    return isinstance(stage.mapping, RowMapping) and stage.mapping.storage in (Storage.CACHE, Storage.STEPS)


def _points(stage: Stage, tensor: Tensor, point: Point) -> Size:
    """Return the elements of a tensor that the whole domain reads at a point."""
    rows = size_of(stage.alignment.domain.rows)
    columns = size_of(point.columns) if point.per_column else 1
    both = rows * columns
    counts = {At.FULL: both, At.ROW: rows, At.COLUMN: columns, At.ONE: 1, At.INDEX: both}
    return _least(counts[point.at], size_of(tensor.size))


def _least(a: Size, b: Size) -> Size:
    """Return the smaller one, the first if that is not known."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else a
