# SPDX-License-Identifier: Apache-2.0
"""Make a grid-wide plan: phases of parts, on a grid that is resident as a whole, for values that cross blocks.

The launch follows AStitch 4.5: the grid is one wave of blocks, and the registers are bounded so that it fits. Every
block takes tasks of every part in turn (vertical packing); a part's first task goes to the block after the one that
got the last task of the part before it, so that small parts of a phase run side by side.
"""

from __future__ import annotations

from dataclasses import replace

from ..device import DeviceModel
from ..graph.dtype import compute_dtype, item_bytes
from ..graph.extent import as_extent
from ..graph.ir import Operator, StitchGraph, Tensor
from ..graph.rewrite.moments import candidates, merge_moments
from . import heuristics
from .alignment import Alignment, Misaligned
from .grid_plan import GridPart, GridPlan
from .launch import MAX_REGISTERS
from .mapping import ColumnMapping, RowMapping, tile_words, vector_length
from .part_registers import keep_resident
from .partition import Orientation, Partition, orientation, partition
from .parts import Part, align_part
from .passes import Keep, Schedule, schedule
from .retention import adopt, retain
from .scratch import Scratch


def make_grid_plan(graph: StitchGraph, device: DeviceModel, barriers: bool = True) -> GridPlan:
    """Partition the graph, map every part, lay out the launch and the scratch.

    Args:
        graph: a stitch op's graph.
        device: the device that the kernel is for.
        barriers: put barriers between the phases, where the device can; otherwise each phase is a kernel.

    Raises:
        Misaligned: when no partition serves the graph, or the device cannot hold its grid.
    """
    twice = [m for m in candidates(graph) if orientation(m.total) != Orientation.ROW]
    barriers = barriers and device.cooperative
    found = partition(merge_moments(graph, twice), device.sms, replicate=barriers)
    reasons: list[str] = []
    best: tuple[float, int, int] | None = None
    for (threads, per_sm), penalty in heuristics.GRID_BLOCK_SHAPES.items():
        if threads * per_sm > device.threads_per_sm:
            continue
        mapper = _Mapper(found, device, threads, per_sm, barriers)
        try:
            mapper.run()
        except Misaligned as err:
            reasons.append(str(err))
            continue
        cost = mapper.cost + penalty * mapper.tasks_in_turn
        if best is None or cost < best[0]:
            best = (cost, threads, per_sm)
    if best is None:
        raise Misaligned(reasons[0] if reasons else f"{device.name} cannot hold the grid")
    plan = _Mapper(
        found, device, *best[1:], barriers
    ).run()  # once more: mapping sets how many partial results there are
    plan = replace(plan, barriers=barriers and device.cooperative)
    _lay_out_scratch(plan)
    plan.retention = retain(plan, _registers_of(device, plan.threads, plan.blocks_per_sm))
    return plan


def _registers_of(device: DeviceModel, threads: int, per_sm: int) -> int:
    """Registers that a thread has."""
    return min(MAX_REGISTERS, device.registers_per_sm // (threads * per_sm))


class _Mapper:
    def __init__(self, found: Partition, device: DeviceModel, threads: int, per_sm: int, barriers: bool):
        self.found, self.device, self.barriers = found, device, barriers
        self.threads, self.per_sm = threads, per_sm
        # For tiles and accumulators.
        self.words = _registers_of(device, threads, per_sm) - heuristics.OVERHEAD_REGISTERS
        self.blocks = device.sms * per_sm
        # Of every part: the fraction wasted, and the bytes it reads.
        self.wasted: list[tuple[float, int]] = []
        self.most_tasks = 1

    @property
    def cost(self) -> float:
        """The fraction wasted of all that is read."""
        return sum(c * size for c, size in self.wasted) / max(1, sum(size for _, size in self.wasted))

    @property
    def tasks_in_turn(self) -> float:
        """Whether blocks take several tasks in turn (1), or have one each at most (0)."""
        return min(1.0, max(0.0, self.most_tasks / self.blocks - 1.0))

    def run(self) -> GridPlan:
        phases: list[list[GridPart]] = []
        for parts in self.found.phases:
            offset = 0
            mapped: list[GridPart] = []
            for part in parts:
                grid_part = self._adopted(part, phases) if offset == 0 else None
                grid_part = grid_part or self._map(part)
                if not part.replicated:
                    grid_part.offset = offset % self.blocks
                    offset += grid_part.tasks * grid_part.tiles
                keep_resident(grid_part, self.words)
                mapped.append(grid_part)
            phases.append(mapped)
        _turn_around(phases)
        blocks = self.blocks
        if len(phases) == 1:  # no barrier: as many blocks as there is work
            blocks = max(1, sum(p.tasks * p.tiles for p in phases[0]))
        plan = GridPlan(self.found.graph, self.device, self.found, phases, self.threads, blocks, self.per_sm)
        if blocks != self.blocks:
            for p in phases[0]:
                p.stride = 1 if p.part.replicated else blocks // p.tiles
                self._size_partials(p)
        return plan

    # -- mapping ------------------------------------------------------------------------------------------------
    def _map(self, part: Part) -> GridPart:
        self._fit_partials(part)
        assert part.alignment is not None
        al = part.alignment
        sched = schedule(al, hoist=True)
        if al.domain.flat:
            mapped = self._flat(part, sched)
        else:
            mapped = self._rows(part, sched)
        self._size_partials(mapped)
        return mapped

    def _size_partials(self, mapped: GridPart) -> None:
        """Room for a partial result of every block that works on the part."""
        for op in mapped.part.folds:
            self._set_blocks(op, mapped.stride * (mapped.tiles if op.output.size == 1 else 1))

    def _adopted(self, part: Part, phases: list[list[GridPart]]) -> GridPart | None:
        if not self.barriers:
            return None
        earlier = [p for parts in phases for p in parts]
        return adopt(part, earlier, self.found.cut, self.blocks, self.words)

    def _set_blocks(self, op: Operator, blocks: int) -> None:
        partial = self.found.partials[op]
        partial.shape = (*partial.shape[:-1], blocks)

    def _fit_partials(self, part: Part) -> None:
        """Finish reductions over as many partial results as the mapping of the fold's part makes."""
        changed = False
        for root in part.roots:
            for access in root.accesses:
                if root.is_reduce and access.tensor in self.found.partials.values():
                    (block,) = root.reduce
                    if block.extent != access.tensor.shape[-1]:
                        block.extent = as_extent(access.tensor.shape[-1])
                        changed = True
        if changed:
            align_part(self.found.cut, part, part.roots, part.folds, part.stored)

    def _flat(self, part: Part, sched: Schedule) -> GridPart:
        al = part.alignment
        assert al is not None
        columns = {str(p.columns): p.columns for p in sched.passes}
        mapping = RowMapping(self.threads, 1, split=True)
        tasks = 1  # also where no value has columns: a total of one element
        for text, extent in columns.items():
            vector = vector_length(al, sched, extent, self.device)
            words = max(1.0, tile_words(al, sched, extent)) * vector
            pieces = -(-int(extent) // (self.threads * vector))
            fitting = int(self.words // (2 * words))
            chunks = max(1, min(heuristics.VECTORS_IN_FLIGHT, fitting, pieces // self.blocks))
            mapping.columns[text] = ColumnMapping(vector, chunks)
            tasks = max(tasks, -(-int(extent) // (self.threads * vector * chunks)))
        self.most_tasks = max(self.most_tasks, tasks)
        made = GridPart(part, sched, mapping, tasks, self.blocks)
        if self.barriers and len(columns) == len(sched.passes) == 1 and self._reads_again(part):
            self._take_in_turn(made)
        return made

    def _reads_again(self, part: Part) -> bool:
        """True where a part of another phase reads one of the part's large inputs as well."""
        large = {t for t in part.tensors if t in self.found.graph.inputs and _is_large(t)}
        others = [
            p for parts in self.found.phases for p in parts if p.phase != part.phase and not p.replicated
        ]
        return any(t in large for p in others for t in p.tensors)

    def _take_in_turn(self, made: GridPart) -> None:
        """Let what was one task be several at once: parts whose tasks are of equal size share out inputs alike."""
        ((text, m),) = made.mapping.columns.items()
        (p,) = made.schedule.passes
        made.mapping.columns[text] = ColumnMapping(m.vector, 1)
        made.tasks = -(-int(p.columns) // (self.threads * m.vector))
        made.unroll = m.chunks

    def _rows(self, part: Part, sched: Schedule) -> GridPart:
        al = part.alignment
        assert al is not None
        rows = int(al.domain.rows)
        extents = {str(p.columns): int(p.columns) for p in sched.passes}
        vectors = {s: vector_length(al, sched, e, self.device) for s, e in extents.items()}
        tiled = bool(sched.passes) and not any(p.reduces for p in sched.passes) and not sched.row_outputs
        tiled = tiled and not sched.row_folds and len(extents) == 1
        best: tuple[float, int] | None = None
        threads = 1
        while self.threads % threads == 0:  # a power of two, so that lanes fold in halves
            cost = self._cost(al, sched, extents, vectors, threads, rows, tiled)
            if best is None or cost < best[0]:
                best = (cost, threads)
            threads *= 2
        assert best is not None
        threads = best[1]
        if part.replicated:  # all at once, if the block has the threads
            threads = max(1, self.threads // rows)
            threads = min(1 << (threads.bit_length() - 1), self.device.warp)
            while self.threads % threads:
                threads //= 2
        read = sum(int(t.size) * item_bytes(t.dtype) for t in part.graph.inputs)
        self.wasted.append((best[0], read))
        mapping = RowMapping(threads, self.threads // threads)
        tiles = 1
        for text, extent in extents.items():
            vector = vectors[text]
            chunks = -(-extent // (vector * threads))
            if tiled and chunks > 1:
                most = max(1, int(self.words // max(1.0, vector * self._words(al, sched, extent))))
                chunks = min(chunks, most, heuristics.TILE_CHUNKS)
                tiles = -(-extent // (vector * threads * chunks))
                mapping.segments = tiles
                mapping.columns[text] = ColumnMapping(vector, chunks)
                continue
            mapping.columns[text] = ColumnMapping(vector, chunks)
            if chunks * vector * self._words(al, sched, extent) > self.words:
                mapping.keep = mapping.keep and chunks == 1
        if not mapping.keep:
            if any(p.folds for p in sched.passes) or any(k[1].per_column for k in sched.hoisted):
                raise Misaligned("the sums of all columns do not fit the registers of a block")
            for text, m in mapping.columns.items():
                chunks = max(1, heuristics.STEP_ELEMENTS // m.vector)
                mapping.columns[text] = ColumnMapping(m.vector, chunks, -(-m.chunks // chunks))
            sched = schedule(al, Keep.NOTHING, hoist=True)
        tasks = -(-rows // mapping.rows_per_block)
        if tiles > self.blocks:
            raise Misaligned(f"{tiles} tiles of columns on {self.blocks} blocks")
        self.most_tasks = max(self.most_tasks, tasks * tiles)
        stride = 1 if part.replicated else min(self.blocks // tiles, tasks)
        return GridPart(part, sched, mapping, tasks, stride, tiles, unroll=self._unroll(al, sched, mapping))

    def _unroll(self, al: Alignment, sched: Schedule, mapping: RowMapping) -> int:
        """Groups of rows in flight at once where rows only feed folds: no barrier or store stands between them."""
        if len(sched.passes) != 1 or sched.row_outputs or sched.row_folds:
            return 1
        (p,) = sched.passes
        if p.reduces or p.outputs:
            return 1
        m = mapping.of(p.columns)
        words = m.vector * m.chunks * max(1.0, tile_words(al, sched, p.columns))
        room = self.words - m.vector * m.chunks * len(p.folds)
        return max(1, min(heuristics.VECTORS_IN_FLIGHT // m.chunks, int(room // max(1.0, words))))

    def _words(self, al: Alignment, sched: Schedule, extent: int) -> float:
        """Registers a column costs a thread: its tile, and an accumulator for each fold."""
        folds = [op for p in sched.over(extent) for op, _ in p.folds]
        sums = sum(
            max(1.0, item_bytes(compute_dtype(op.output.dtype)) / 4) for op in folds if op.output.size != 1
        )
        same_rows = sum(1 for _, point in sched.hoisted if str(point.columns) == str(extent))
        return tile_words(al, sched, extent) + sums + same_rows

    def _cost(
        self,
        al: Alignment,
        sched: Schedule,
        extents: dict[str, int],
        lengths: dict[str, int],
        threads: int,
        rows: int,
        tiled: bool,
    ) -> float:
        """Idle lanes, registers beyond the bound, scattered loads, barriers, idle blocks: less is better."""
        cost = 0.0
        # Idle lanes matter as far as there is work for all.
        busy = self.blocks * self.threads * heuristics.BUSY_ELEMENTS
        work = min(1.0, rows * max(extents.values(), default=1) / busy)
        for text, extent in extents.items():
            vector = lengths[text]
            vectors = -(-extent // vector)
            chunks = -(-vectors // threads)
            words = chunks * vector * self._words(al, sched, extent)
            if tiled:
                chunks = min(chunks, heuristics.TILE_CHUNKS)
                idle = -(-vectors // (threads * chunks)) * threads * chunks / vectors - 1.0
                cost += heuristics.tile_cost(idle, threads, vector, self.threads / threads)
                continue
            idle = chunks * threads / vectors - 1.0
            over = max(0.0, words / self.words - 1.0)
            cost += heuristics.row_cost(idle, work, over, threads, vector)
        if threads > self.device.warp and any(p.reduces for p in sched.passes):
            cost += heuristics.reduction_cost(threads // self.device.warp)
        groups = -(-rows // max(1, self.threads // threads))
        if groups < self.device.sms:
            most = max((-(-e // lengths[s]) for s, e in extents.items()), default=1)
            turns, least = most / threads, most * rows / (self.device.sms * self.threads)
            cost += heuristics.idle_device_cost(groups / self.device.sms, turns, least)
        return cost


def _is_large(tensor: Tensor) -> bool:
    return int(tensor.size) * item_bytes(tensor.dtype) >= heuristics.CACHED_INPUT_BYTES


def _turn_around(phases: list[list[GridPart]]) -> None:
    """Let parts that read a large input again begin where the last one that read it ended."""
    direction: dict[Tensor, bool] = {}
    for parts in phases:
        for p in parts:
            if p.part.replicated:
                continue
            tensors = {copy: t for t, copy in p.part.tensors.items()}
            large = [tensors[t] for t in p.graph.inputs if _is_large(t)]
            before = [direction[t] for t in large if t in direction]
            p.backwards = bool(before) and not before[0]
            direction |= dict.fromkeys(large, p.backwards)


def _lay_out_scratch(plan: GridPlan) -> None:
    """A buffer for every global tensor that is no output; tensors that do not live at once share one.

    A tensor lives from the phase that writes it to the last one that reads it. Between the last reads of a buffer's
    tensor and the first writes of the next there is a barrier.
    """
    found = plan.partition
    first: dict[Tensor, int] = {}
    for op, tensor in found.partials.items():
        first[tensor] = next(f for f, parts in enumerate(plan.phases) for p in parts if op in p.part.folds)
    first |= found.stored
    last = dict(first)
    for f, parts in enumerate(plan.phases):
        for p in parts:
            for tensor in first:
                if f > first[tensor] and any(tensor in op.inputs for op in p.part.copies):
                    last[tensor] = f
    for op, f in found.scalars.items():
        later = [g for g, parts in enumerate(plan.phases) if any(op.output in p.part.tensors for p in parts)]
        # Blocks that stay hold the result; kernels of their own finish it again.
        last[found.partials[op]] = f + 1 if plan.cooperative else max([f + 1, *later])
    outputs = set(plan.graph.outputs)
    free: list[tuple[str, str, int, int]] = []  # name, dtype, elements, last phase
    for tensor in sorted((t for t in first if t not in outputs), key=lambda t: first[t]):
        size, wide = int(tensor.size), compute_dtype(tensor.dtype)
        for i, (name, dtype, room, until) in enumerate(free):
            if dtype == wide and until < first[tensor]:
                free[i] = (name, dtype, max(room, size), last[tensor])
                plan.place[tensor] = name
                break
        else:
            name = f"scratch{len(free)}"
            free.append((name, wide, size, last[tensor]))
            plan.place[tensor] = name
    plan.scratch = [Scratch(name, (size,), dtype) for name, dtype, size, _ in free]
