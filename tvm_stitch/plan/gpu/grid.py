# SPDX-License-Identifier: Apache-2.0
"""Make a grid-wide plan: phases of stages, on a grid that is resident as a whole, for values that cross blocks.

The launch follows AStitch 4.5. The grid is one wave of blocks, and the registers are bounded so that it fits. Every
block takes tasks of every stage, one stage after the other (vertical packing). A stage's first task goes to the block
after the one that got the last task of the stage before it. This way, small stages of a phase run side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import ByExtent, Extent
from ...graph.ir import Operator, StitchGraph, Tensor
from ...graph.rewrite.interleaved import divided
from ...graph.rewrite.one_pass_variance import candidates, with_one_pass_variance
from ..finalise import finalised
from ..iteration.alignment import Alignment, Misaligned
from ..iteration.loops import Keep, LoopNest, schedule
from ..kernel import Grid, KernelPlan, Stage
from ..rows.matrix import matrix_mapping
from ..rows.weight_ring import with_weight_ring
from ..rows.weights import weights_mapping
from ..shared_memory import own_bytes, with_layout
from ..slices import Cut, Slice, aligned_slice, final_reduce, partial_tensor
from .block_costs import BlockCosts
from .early_loads import with_early_loads_on_grid
from .mapping import ColumnMapping, RowMapping, Storage
from .occupancy import MAX_REGISTERS
from .orientation import Orientation, orientation, short_runs
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
    twice = [
        m
        for m in candidates(graph)
        if orientation(m.total) is not Orientation.ROW or short_runs(m.total, device) is not None
    ]
    barriers = barriers and device.cooperative
    once = with_one_pass_variance(graph, twice)
    parted = partition(divided(once, lambda op: short_runs(op, device)), device, barriers, preferred)
    next(_mapped(parted, device, barriers))
    return parted


def map_partition(parted: Partition, device: DeviceModel, barriers: bool = True) -> KernelPlan:
    """Map every stage of a partition, and lay out the launch and the scratch.

    ``barriers`` is the argument with which the partition was made.

    Raises:
        Misaligned: when the device cannot hold the grid, which :func:`grid_partition` finds out before.
    """
    _, plan = min(_mapped(parted, device, barriers and device.cooperative), key=lambda choice: choice[0])
    plan = with_workspace(plan)
    grid = plan.shared_grid
    words = _registers_of(device, grid.threads, grid.blocks_per_sm)
    plan = with_weight_ring(replace(plan, retention=retain(plan, words)))
    return with_layout(finalised(plan, parted.preferred))


def _mapped(parted: Partition, device: DeviceModel, barriers: bool) -> Iterator[tuple[float, KernelPlan]]:
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
            choice = _Mapper(parted, device, threads, per_sm, barriers).run(penalty)
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

    def __init__(self, parted: Partition, device: DeviceModel, threads: int, per_sm: int, barriers: bool):
        self.parted, self.device, self.barriers = parted, device, barriers
        self.threads, self.per_sm = threads, per_sm
        # For tiles and accumulators.
        self.words = _registers_of(device, threads, per_sm) - device.choices.overhead_registers
        self.blocks = device.sms * per_sm
        self.costs = BlockCosts(device, threads, self.blocks, self.words)
        # For each stage: the fraction wasted, and the bytes it reads.
        self.wasted: list[tuple[float, int]] = []
        self.most_tasks = 1
        self.partials = dict(parted.crossing.partials)
        self.resized: dict[Tensor, Tensor] = {}  # partial results, by those of the partition
        self.finals: dict[Operator, Operator] = {}  # reductions that finish partial results
        self.cut = Cut(dict(parted.cut.producer), dict(parted.cut.ready))

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
        for stages in self.parted.phases:
            offset = 0
            mapped: list[Stage] = []
            alone = len(self.parted.phases) > 1 and sum(not piece.replicated for piece in stages) == 1
            for piece in map(self._resized, stages):
                stage = self._adopted(piece, phases) if offset == 0 else None
                stage = stage or self._map(piece)
                stage = spread(stage, self.blocks) if alone else stage
                if not piece.replicated:
                    stage = replace(stage, offset=offset % self.blocks)
                    offset += stage.tasks * stage.tiles
                stage = with_early_loads_on_grid(stage, self.parted.graph.inputs, self.words)
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
        parted = self.parted
        plan = KernelPlan(
            parted.graph,
            self.device,
            tuple(map(tuple, in_alternating_order(phases, self.device.choices))),
            replace(parted.crossing, partials=self.partials),
            Grid(self.threads, blocks, self.per_sm, self.barriers),
        )
        if own_bytes(plan) > self.device.choices.replicated_bytes:
            raise Misaligned(f"every block would keep {own_bytes(plan)} bytes of values")
        return self._cost(penalty) + self.costs.on_units(phases), plan

    def _shared_out(self, stages: Sequence[Stage], blocks: int) -> list[Stage]:
        """Return the stages of the only phase on as many blocks as there is work for."""
        shared = []
        for p in stages:
            shared.append(replace(p, stride=1 if p.slice.replicated else blocks // p.tiles))
            self._size_partials(shared[-1])
        return shared

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
        stage = Stage(piece, sched, mapping, tasks, self.blocks)
        if self.barriers and len(spaces) == len(sched.passes) == 1 and self._reads_again(piece):
            return self._persistent(stage)
        return stage

    def _reads_again(self, piece: Slice) -> bool:
        """Return whether a stage of another phase reads one of the stage's large inputs as well."""
        large = {
            t for t in piece.tensors if t in self.parted.graph.inputs and is_large(t, self.device.choices)
        }
        others = [
            p for stages in self.parted.phases for p in stages if p.phase != piece.phase and not p.replicated
        ]
        return any(t in large for p in others for t in p.tensors)

    def _persistent(self, stage: Stage) -> Stage:
        """Return one task as several at once: stages whose tasks are of equal size share out inputs alike."""
        mapping = stage.row_mapping
        ((columns, m),) = mapping.columns.items()
        mapping = replace(mapping, columns=ByExtent([(columns, ColumnMapping(m.vector, 1))]))
        tasks = -(-int(columns) // (self.threads * m.vector))
        return replace(stage, mapping=mapping, tasks=tasks, unroll=m.chunks)

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
        costs = [
            (self.costs.of_rows(al, sched, vectors, threads, rows, tiled), threads) for threads in counts
        ]
        wasted, threads = min(costs)
        if piece.replicated:  # All rows at once, if the block has enough threads.
            threads = max(1, self.threads // rows)
            most = self.threads if self.parted.graph.has_products else self.device.warp
            threads = min(1 << (threads.bit_length() - 1), most)
            while self.threads % threads:
                threads //= 2
        read = sum(int(t.size) * item_bytes(t.dtype) for t in piece.graph.inputs)
        self.wasted.append((wasted, read))
        tiles, fits = 1, True
        spaces: list[tuple[Extent, ColumnMapping]] = []
        for extent, vector in vectors.items():
            chunks = -(-extent // (vector * threads))
            words = self.costs.words_of(al, sched, extent)
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
