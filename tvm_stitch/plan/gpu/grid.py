# SPDX-License-Identifier: Apache-2.0
"""Make a grid-wide plan: phases of stages, on a grid that is resident as a whole, for values that cross blocks.

The launch follows AStitch 4.5. The grid is one wave of blocks, and the registers are bounded so that it fits. Every
block takes tasks of every stage, one stage after the other (vertical packing). A stage's first task goes to the block
after the one that got the last task of the stage before it. This way, small stages of a phase run side by side.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...cost.mappings import idle_device_cost, reduction_cost, row_cost, tile_cost
from ...device import DeviceModel
from ...graph.dtype import compute_dtype, exchanged_dtype, item_bytes
from ...graph.extent import ByExtent, Extent, extent_key
from ...graph.ir import Operator, StitchGraph, Tensor
from ...graph.rewrite.one_pass_variance import candidates, with_one_pass_variance
from ..finalise import finalised
from ..iteration.alignment import Alignment, Misaligned
from ..iteration.loops import Keep, LoopNest, schedule
from ..kernel import Grid, KernelPlan, Stage
from ..rows.matrix import matrix_mapping
from ..rows.weights import weights_mapping
from ..shared_memory import own_bytes, with_layout
from ..slices import Cut, Slice, aligned_slice, final_reduce, partial_tensor
from .early_loads import with_early_loads_on_grid
from .mapping import ColumnMapping, RowMapping, Storage
from .occupancy import MAX_REGISTERS
from .orientation import Orientation, orientation
from .phases.partition import Partition, partition
from .registers import with_resident
from .reuse import adopt, retain
from .task_order import in_alternating_order, is_large, spread
from .tile import tile_words, vector_length
from .workspace import with_workspace


def grid_partition(
    graph: StitchGraph, device: DeviceModel, barriers: bool = True, preferred: Collection[str] = ()
) -> Partition:
    """Partition the graph into phases of stages for which some shape of block is large enough.

    Args:
        graph: a stitch op's graph.
        device: the device that the kernel is for.
        barriers: put barriers between the phases if the device supports them. Otherwise each phase is a kernel.
        preferred: names of operators to choose as the dominants of their groups.

    Raises:
        Misaligned: when no partition serves the graph, or the device cannot hold its grid.
    """
    twice = [m for m in candidates(graph) if orientation(m.total) is not Orientation.ROW]
    barriers = barriers and device.cooperative
    found = partition(with_one_pass_variance(graph, twice), device, barriers, preferred)
    next(_mapped(found, device, barriers))
    return found


def map_partition(found: Partition, device: DeviceModel, barriers: bool = True) -> KernelPlan:
    """Map every stage of a partition, and lay out the launch and the scratch.

    ``barriers`` is the argument with which the partition was made.

    Raises:
        Misaligned: when the device cannot hold the grid, which :func:`grid_partition` finds out before.
    """
    _, plan = min(_mapped(found, device, barriers and device.cooperative), key=lambda choice: choice[0])
    plan = with_workspace(plan)
    grid = plan.shared_grid
    words = _registers_of(device, grid.threads, grid.blocks_per_sm)
    return with_layout(finalised(replace(plan, retention=retain(plan, words)), found.preferred))


def _mapped(found: Partition, device: DeviceModel, barriers: bool) -> Iterator[tuple[float, KernelPlan]]:
    """Yield the plan for each shape of block that fits, with its cost.

    Raises:
        Misaligned: when no shape fits.
    """
    reasons: list[str] = []
    none = True
    for threads, per_sm, penalty in device.choices.grid_block_shapes:
        if threads * per_sm > device.threads_per_sm:
            continue
        try:
            choice = _Mapper(found, device, threads, per_sm, barriers).run(penalty)
        except Misaligned as err:
            reasons.append(str(err))
            continue
        none = False
        yield choice
    if none:
        raise Misaligned(reasons[0] if reasons else f"{device.name} cannot hold the grid")


def _registers_of(device: DeviceModel, threads: int, per_sm: int) -> int:
    """Return the registers that a thread has."""
    return min(MAX_REGISTERS, device.registers_per_sm // (threads * per_sm))


class _Mapper:
    """Maps the stages of a partition to a launch, phase by phase: one mapper for each shape of block.

    The number of partial results of a reduction across rows is known once its stage is mapped. The stages that finish
    it are then rebuilt for as many. The partition itself stays as it is.
    """

    def __init__(self, found: Partition, device: DeviceModel, threads: int, per_sm: int, barriers: bool):
        self.found, self.device, self.barriers = found, device, barriers
        self.threads, self.per_sm = threads, per_sm
        # For tiles and accumulators.
        self.words = _registers_of(device, threads, per_sm) - device.choices.overhead_registers
        self.blocks = device.sms * per_sm
        # For each stage: the fraction wasted, and the bytes it reads.
        self.wasted: list[tuple[float, int]] = []
        self.most_tasks = 1
        self.partials = dict(found.crossing.partials)
        self.resized: dict[Tensor, Tensor] = {}  # partial results, by those of the partition
        self.finals: dict[Operator, Operator] = {}  # reductions that finish partial results
        self.cut = Cut(dict(found.cut.producer), dict(found.cut.ready))

    def _cost(self, penalty: float) -> float:
        """Return the wasted fraction of all bytes read.

        ``penalty`` is added if blocks take several tasks one after the other.
        """
        wasted = sum(c * size for c, size in self.wasted) / max(1, sum(size for _, size in self.wasted))
        return wasted + penalty * min(1.0, max(0.0, self.most_tasks / self.blocks - 1.0))

    def run(self, penalty: float) -> tuple[float, KernelPlan]:
        """Return the cost and the plan. ``penalty`` is the cost of blocks of this shape.

        Raises:
            Misaligned: when a stage does not fit such blocks.
        """
        phases: list[list[Stage]] = []
        for stages in self.found.phases:
            offset = 0
            mapped: list[Stage] = []
            alone = len(self.found.phases) > 1 and sum(not piece.replicated for piece in stages) == 1
            for piece in map(self._resized, stages):
                stage = self._adopted(piece, phases) if offset == 0 else None
                stage = stage or self._map(piece)
                stage = spread(stage, self.blocks) if alone else stage
                if not piece.replicated:
                    stage = replace(stage, offset=offset % self.blocks)
                    offset += stage.tasks * stage.tiles
                stage = with_early_loads_on_grid(stage, self.found.graph.inputs, self.words)
                mapped.append(with_resident(stage, self.words))
            phases.append(mapped)
        blocks = self.blocks
        if len(phases) == 1:  # no barrier: as many blocks as there is work
            blocks = max(1, sum(p.tasks * p.tiles for p in phases[0] if not p.slice.replicated))
            repeated = any(p.slice.replicated for p in phases[0])
            if repeated:  # by each block that is resident, rather than by one block for each task
                blocks = min(blocks, self.blocks)
            if blocks != self.blocks:
                phases = [self._shared_out(phases[0], blocks)]
        found = self.found
        plan = KernelPlan(
            found.graph,
            self.device,
            tuple(map(tuple, in_alternating_order(phases, self.device.choices))),
            replace(found.crossing, partials=self.partials),
            Grid(self.threads, blocks, self.per_sm, self.barriers),
        )
        if own_bytes(plan) > self.device.choices.replicated_bytes:
            raise Misaligned(f"every block would keep {own_bytes(plan)} bytes of values")
        return self._cost(penalty) + self._cost_on_units(phases), plan

    def _cost_on_units(self, phases: Sequence[Sequence[Stage]]) -> float:
        """Return what blocks of another size cost if matrix units multiply weights as they lie."""
        units = [stage.row_mapping.matrix for stages in phases for stage in stages]
        choices = self.device.choices
        whole = any(each is not None and each.packed.bits == 16 for each in units)
        return choices.matrix_block_cost if whole and self.threads != choices.matrix_block_threads else 0.0

    def _shared_out(self, stages: Sequence[Stage], blocks: int) -> list[Stage]:
        """Return the stages of the only phase on as many blocks as there is work for."""
        found = []
        for p in stages:
            found.append(replace(p, stride=1 if p.slice.replicated else blocks // p.tiles))
            self._size_partials(found[-1])
        return found

    # -- reductions across rows --------------------------------------------------------------------------------
    def _size_partials(self, mapped: Stage) -> None:
        """Make room for a partial result of every block that works on the stage."""
        for op in mapped.slice.cross_row:
            blocks, partial = mapped.stride * (mapped.tiles if op.output.size == 1 else 1), self.partials[op]
            if partial.shape[-1] == blocks:
                continue
            new = self.partials[op] = partial_tensor(op, blocks, partial.dtype)
            self.resized[partial] = new
            self.cut.ready[new] = self.cut.ready[partial]
            final = self.cut.producer[op.output]
            if final is not op:
                self.finals[final] = self.cut.producer[op.output] = final_reduce(final, new)

    def _resized(self, piece: Slice) -> Slice:
        """Return the stage, finishing as many partial results as the mappings of the first stages make."""
        if not any(op in self.finals for op in piece.copies):
            return piece

        def new(ops: Iterable[Operator]) -> list[Operator]:
            return [self.finals.get(op, op) for op in ops]

        return aligned_slice(
            self.cut, self.device.choices, piece.phase, piece.domain, new(piece.roots), new(piece.cross_row),
            new(piece.stored), piece.replicated,
            self.finals.get(piece.dominant, piece.dominant) if piece.dominant else None,
        )  # fmt: skip

    # -- mapping ------------------------------------------------------------------------------------------------
    def _map(self, piece: Slice) -> Stage:
        al = piece.alignment
        sched = schedule(al, hoist=True)
        mapped = self._flat(piece, sched) if al.domain.flat else self._rows(piece, sched)
        self._size_partials(mapped)
        return mapped

    def _adopted(self, piece: Slice, phases: list[list[Stage]]) -> Stage | None:
        if not self.barriers:
            return None
        earlier = [p for stages in phases for p in stages]
        return adopt(piece, earlier, self.cut, self.blocks, self.words)

    def _flat(self, piece: Slice, sched: LoopNest) -> Stage:
        al = piece.alignment
        spaces: list[tuple[Extent, ColumnMapping]] = []
        tasks = 1  # Also if no value has columns: a total of one element.
        for extent in sched.spaces:
            vector = vector_length(al, sched, extent, self.device)
            words = max(1.0, tile_words(al, sched, extent)) * vector
            pieces = -(-int(extent) // (self.threads * vector))
            fitting = int(self.words // (2 * words))
            chunks = max(1, min(self.device.choices.vectors_in_flight, fitting, pieces // self.blocks))
            spaces.append((extent, ColumnMapping(vector, chunks)))
            tasks = max(tasks, -(-int(extent) // (self.threads * vector * chunks)))
        self.most_tasks = max(self.most_tasks, tasks)
        mapping = RowMapping(self.threads, 1, ByExtent(spaces), split=True)
        made = Stage(piece, sched, mapping, tasks, self.blocks)
        if self.barriers and len(spaces) == len(sched.passes) == 1 and self._reads_again(piece):
            return self._persistent(made)
        return made

    def _reads_again(self, piece: Slice) -> bool:
        """Return whether a stage of another phase reads one of the stage's large inputs as well."""
        large = {
            t for t in piece.tensors if t in self.found.graph.inputs and is_large(t, self.device.choices)
        }
        others = [
            p for stages in self.found.phases for p in stages if p.phase != piece.phase and not p.replicated
        ]
        return any(t in large for p in others for t in p.tensors)

    def _persistent(self, made: Stage) -> Stage:
        """Return one task as several at once: stages whose tasks are of equal size share out inputs alike."""
        mapping = made.row_mapping
        ((columns, m),) = mapping.columns.items()
        mapping = replace(mapping, columns=ByExtent([(columns, ColumnMapping(m.vector, 1))]))
        tasks = -(-int(columns) // (self.threads * m.vector))
        return replace(made, mapping=mapping, tasks=tasks, unroll=m.chunks)

    def _rows(self, piece: Slice, sched: LoopNest) -> Stage:
        al = piece.alignment
        rows = int(al.domain.rows)
        weights = weights_mapping(al, sched, self.device, self.threads, self.blocks)
        if weights is not None and not piece.replicated:
            plain = schedule(al)  # all values of a factor are computed once
            matrix = matrix_mapping(al, plain, self.device, self.threads, self.blocks)
            if isinstance(matrix, RowMapping):
                weights, sched = matrix, plain
            else:
                weights = replace(weights, by_lanes=matrix)
            tasks = -(-rows // weights.rows_per_block)
            self.most_tasks = max(self.most_tasks, tasks)
            idle = -(-tasks // self.blocks) * self.blocks / tasks - 1.0
            self.wasted.append((idle, sum(int(t.size) * item_bytes(t.dtype) for t in piece.graph.inputs)))
            return Stage(piece, sched, weights, tasks, min(self.blocks, tasks))
        extents = [int(e) for e in sched.spaces]
        vectors = {e: vector_length(al, sched, e, self.device) for e in extents}
        tiled = bool(sched.passes) and not any(p.reduces for p in sched.passes) and not sched.row_outputs
        tiled = tiled and not sched.final_cross_row and len(extents) == 1
        counts = [1 << n for n in range(self.threads.bit_length()) if self.threads % (1 << n) == 0]
        costs = [(self._cost_of(al, sched, vectors, threads, rows, tiled), threads) for threads in counts]
        wasted, threads = min(costs)
        if piece.replicated:  # All rows at once, if the block has enough threads.
            threads = max(1, self.threads // rows)
            most = self.threads if self.found.graph.has_products else self.device.warp
            threads = min(1 << (threads.bit_length() - 1), most)
            while self.threads % threads:
                threads //= 2
        read = sum(int(t.size) * item_bytes(t.dtype) for t in piece.graph.inputs)
        self.wasted.append((wasted, read))
        tiles, fits = 1, True
        spaces: list[tuple[Extent, ColumnMapping]] = []
        for extent, vector in vectors.items():
            chunks = -(-extent // (vector * threads))
            words = self._words(al, sched, extent)
            if tiled and chunks > 1:
                most = max(1, int(self.words // max(1.0, vector * words)))
                chunks = min(chunks, most, self.device.choices.tile_chunks)
                tiles = -(-extent // (vector * threads * chunks))
            elif chunks * vector * words > self.words and chunks > 1:
                fits = False
            spaces.append((extent, ColumnMapping(vector, chunks)))
        storage = Storage.REGISTERS
        if not fits:
            if any(p.cross_row for p in sched.passes) or any(k[1].per_column for k in sched.hoisted):
                raise Misaligned("the sums of all columns do not fit the registers of a block")
            storage = Storage.NOWHERE
            spaces = [(e, self._stepped(m)) for e, m in spaces]
            sched = schedule(al, Keep.NOTHING, hoist=True)
        mapping = RowMapping(
            threads, self.threads // threads, ByExtent(spaces), storage=storage, row_splits=tiles
        )
        tasks = -(-rows // mapping.rows_per_block)
        if tiles > self.blocks:
            raise Misaligned(f"{tiles} tiles of columns on {self.blocks} blocks")
        self.most_tasks = max(self.most_tasks, tasks * tiles)
        stride = 1 if piece.replicated else min(self.blocks // tiles, tasks)
        return Stage(piece, sched, mapping, tasks, stride, tiles, unroll=self._unroll(al, sched, mapping))

    def _stepped(self, m: ColumnMapping) -> ColumnMapping:
        """Return the same columns in steps of a few vectors a thread."""
        chunks = max(1, self.device.choices.step_elements // m.vector)
        return ColumnMapping(m.vector, chunks, -(-m.chunks // chunks))

    def _unroll(self, al: Alignment, sched: LoopNest, mapping: RowMapping) -> int:
        """Return the groups of rows that are in flight at once.

        There are several if rows feed only reductions across them: such rows have no barriers and stores.
        """
        if len(sched.passes) != 1 or sched.row_outputs or sched.final_cross_row:
            return 1
        (p,) = sched.passes
        if p.reduces or p.outputs:
            return 1
        m = mapping.of(p.columns)
        words = m.vector * m.chunks * max(1.0, tile_words(al, sched, p.columns))
        room = self.words - m.vector * m.chunks * len(p.cross_row)
        return max(1, min(self.device.choices.vectors_in_flight // m.chunks, int(room // max(1.0, words))))

    def _words(self, al: Alignment, sched: LoopNest, extent: int) -> float:
        """Return the registers a column costs a thread: its tile, and an accumulator for each reduction across rows."""
        cross_row = [op for p in sched.over(extent) for op, _ in p.cross_row]
        sums = sum(
            max(1.0, item_bytes(compute_dtype(op.output.dtype)) / 4)
            for op in cross_row
            if op.output.size != 1
        )
        same_rows = sum(1 for _, point in sched.hoisted if extent_key(point.columns) == extent)
        return tile_words(al, sched, extent) + sums + same_rows

    def _cost_of(
        self, al: Alignment, sched: LoopNest, vectors: Mapping[int, int], threads: int, rows: int, tiled: bool
    ) -> float:
        """Return the cost of idle lanes, registers beyond the bound, uncoalesced loads, barriers and idle blocks."""
        cost = 0.0
        # Idle lanes matter as far as there is work for all.
        busy = self.blocks * self.threads * self.device.choices.busy_elements
        work = min(1.0, rows * max(vectors, default=1) / busy)
        for extent, vector in vectors.items():
            count = -(-extent // vector)
            chunks = -(-count // threads)
            words = chunks * vector * self._words(al, sched, extent)
            if tiled:
                chunks = min(chunks, self.device.choices.tile_chunks)
                cost += self._tile_cost(al, sched, extent, vector, chunks, threads, rows)
                continue
            idle = chunks * threads / count - 1.0
            over = max(0.0, words / self.words - 1.0)
            cost += row_cost(idle, work, over, threads, vector, extent, self.device.choices)
        if threads > self.device.warp and any(p.reduces for p in sched.passes):
            cost += reduction_cost(threads // self.device.warp, self.device.choices)
        groups = -(-rows // max(1, self.threads // threads))
        if groups < self.device.sms and not tiled:
            most = max((-(-e // vector) for e, vector in vectors.items()), default=1)
            steps, least = most / threads, most * rows / (self.device.sms * self.threads)
            cost += idle_device_cost(groups / self.device.sms, steps, least, self.device.choices)
        return cost

    def _tile_cost(
        self, al: Alignment, sched: LoopNest, extent: int, vector: int, chunks: int, threads: int, rows: int
    ) -> float:
        """Return the cost of tiles of columns: idle lanes and blocks, uncoalesced loads, and partial results.

        Each block that shares the rows of a tile has a partial result of every column of it. Wide tiles are few, so
        they have many such blocks.
        """
        width = vector * chunks * threads
        tiles, tasks = -(-extent // width), -(-rows // (self.threads // threads))
        if tiles > self.blocks:
            return math.inf
        blocks = min(self.blocks // tiles, tasks)
        idle = tiles * width / extent - 1.0
        waiting = self.blocks * -(-tasks // blocks) / (tasks * tiles) - 1.0
        made = {op for p in sched.over(extent) for op, _ in p.cross_row if op.output.size != 1}
        partial = 2 * blocks * extent * sum(item_bytes(exchanged_dtype(op.output.dtype)) for op in made)
        read = sum(int(t.size) * item_bytes(t.dtype) for t in al.graph.inputs)
        return (
            tile_cost(idle, threads, vector, self.threads / threads, self.device.choices)
            + max(0.0, waiting)
            + partial / max(1, read)
        )
