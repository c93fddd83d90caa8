# SPDX-License-Identifier: Apache-2.0
"""Emit one stage of a grid-wide plan: a block's tasks one after the other, and the sums across their rows.

Tasks past the last have no guard of their own. A bound clamped by ``max`` in the address makes nvcc (13.0) store a
vector's four elements one by one, at half the speed. Blocks take several tasks at once, and the remaining tasks one
by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...compat import Buffer, Expr, tir
from ...graph.dtype import compute_dtype
from ...graph.extent import Extent, as_expr
from ...graph.ir import Operator, Tensor
from ...graph.names import short_name
from ...plan.iteration.alignment import Key
from ...plan.iteration.loops import Leaf, RowLoop
from ...plan.kernel import KernelPlan, Stage
from .. import builder as B
from ..buffers import Buffers
from ..combine import combine, identity
from ..evaluator import Evaluator
from .cross_row_reduction import accumulator, store_columns, store_scalars
from .memory.retained import Retained
from .rows import RowEmitter


@dataclass(frozen=True)
class _Task:
    """A group of rows. Kept tasks have a position in shared memory or registers."""

    group: Expr
    shared: Expr | None = None
    register: int | None = None

    @property
    def kept(self) -> bool:
        """True for a task whose loads stay on chip."""
        return self.shared is not None or self.register is not None


class StageEmitter(RowEmitter):
    """Emits one stage: a loop over the block's tasks around the passes of its rows, then the sums across rows."""

    def __init__(
        self,
        stage: Stage,
        plan: KernelPlan,
        buffer: dict[Tensor, Buffer],
        block: Expr,
        thread: Expr,
        retained: Retained | None = None,
    ):
        super().__init__(stage, buffers=_buffers(stage, buffer))
        self.whole, self.grid, self.retained = plan, plan.shared_grid, retained
        self.global_buffer = buffer
        m = self.mapping
        self.grid_block, self.thread = block, thread
        self.lane, self.slot = B.i64(0), B.i64(0)
        # Powers of two, by bit operations: TVM 0.27 mistakes (x + y) % 32 // 8 for (x % 32 + y) // 8 in indices of
        # reshapes.
        if m.threads > 1:
            self.lane = thread
            if m.rows_per_block > 1:
                self.lane = thread & B.i64(m.threads - 1)
        if m.rows_per_block > 1:
            self.slot = thread
            if m.threads > 1:
                self.slot = thread >> B.i64(m.threads.bit_length() - 1)
        self.sums: dict[Operator, Buffer] = {}
        self.hoisted: dict[Key, Buffer] = {}
        self.hoisted_values: dict[Key, Expr] = {}
        self.kept_leaves: dict[Leaf, Tensor] = {}
        if retained is not None:
            kept = retained.retention
            self.kept_leaves = dict(zip(kept.leaves[kept.stages.index(stage)], kept.tensors, strict=True))

    def load_ahead(self) -> None:
        """Emit what goes before the barrier in front of the stage: its early loads."""
        if not self.stage.early or not self.stage.slice.replicated:
            return
        self._enter(_Task(B.i64(0)))
        self._load_early()
        self.resident.update({leaf: self.load_tiles[leaf] for leaf in self.stage.early})

    def run(self) -> None:
        """Emit the stage. Behind the barrier there are results of earlier phases that were not there before it."""
        stage = self.stage
        self.buffers = _buffers(stage, self.global_buffer)
        blocks = self.grid.blocks
        turn = self.grid_block
        if stage.offset:
            turn = tir.floormod(turn + B.i64(blocks - stage.offset), B.i64(blocks))
        self.segment = B.i64(0)
        worker = turn
        if stage.tiles > 1:
            self.segment = B.cell(tir.floormod(turn, B.i64(stage.tiles)), "tile")
            worker = tir.floordiv(turn, B.i64(stage.tiles))
        if self.retained is None:  # tasks kept in registers are outside of loops, where TVM takes no cells
            worker = B.cell(B.i64(0) if stage.slice.replicated else worker, "worker")
        for key in self.stage.schedule.cross_row:
            self.sums[key[0]] = accumulator(key[0], self._sums_of(key[0]))
        self._hoist(one_step(worker))
        working = None
        if stage.stride * stage.tiles < blocks and not stage.slice.replicated:
            working = worker < B.i64(stage.stride)
        self._tasks(worker, working)
        if stage.slice.replicated or (working is not None and self.mapping.threads > self.whole.device.warp):
            # Other threads read what a replicated stage stored. Blocks without a task also miss the barriers in the
            # loop, on which TVM relies afterwards.
            B.block_barrier()
        self._store_sums(worker, working)

    def _hoist(self, once: Expr) -> None:
        """Evaluate the values that no row changes: a single value, or one for each of the thread's columns.

        ``once`` is the extent of a loop of one step.
        """
        self.eval = Evaluator(self.al, B.i64(0), self, buffers=self.buffers)
        for key in self.stage.schedule.below_hoisted:  # else each is written again wherever it is read
            self.eval.bind_row(key)
        for key in self.stage.schedule.hoisted:
            if not key[1].per_column:
                self.eval.bind_row(key)
                self.hoisted_values[key] = B.cell(self.eval.value(key), short_name(key[0]))
                continue
            cm = self.mapping.of(key[1].columns)
            tile = self._tile(cm, compute_dtype(key[0].output.dtype), short_name(key[0]))
            with B.loop("serial", once, "once"):
                for chunk in range(cm.chunks):
                    base = self.base(cm, B.i64(0), B.i64(chunk))
                    with B.when(self._tail(key[1].columns, base)):
                        for e in range(cm.vector):
                            self.element = B.i64(chunk * cm.vector + e)
                            self.eval.at_column(base + B.i64(e))
                            B.store(tile, self.eval.value(key), [self.element])
            self.eval.at_column(None)
            self.element = None
            self.hoisted[key] = self.value_tiles[key] = tile
        for leaf in self.stage.resident:
            (p,) = self.stage.schedule.passes
            cm = self.mapping.of(p.columns)
            tile = self.resident[leaf] = self._tile(
                cm, self.buffers.dtype(leaf[0]), f"{leaf[0].name}_resident"
            )
            with B.loop("serial", once if self.stage.tiles > 1 else 1, "once"):  # the tile's number is a cell
                self._load_tile(leaf, p, cm, B.i64(0), tile)

    # -- tasks --------------------------------------------------------------------------------------------------
    def _tasks(self, worker: Expr, working: Expr | None) -> None:
        """Emit all tasks of the block. Tasks kept on chip are loaded first, and used again last."""
        loops = [self._kept_in_shared, self._kept_in_registers, self._others]
        if self.retained is not None and not self.retained.loads(self.stage):
            loops.reverse()
        for tasks in loops:
            tasks(worker, working)

    def _kept_in_shared(self, worker: Expr, working: Expr | None) -> None:
        if self.retained is None or not self.retained.retention.shared:
            return
        count, together = self.retained.retention.shared, self.stage.unroll
        together = together if count % together == 0 else 1
        with B.loop("serial", count // together, "kept") as step:
            positions = [step * B.i64(together) + B.i64(k) for k in range(together)]
            self._together([_Task(worker + n * B.i64(self.stage.stride), shared=n) for n in positions])

    def _kept_in_registers(self, worker: Expr, working: Expr | None) -> None:
        if self.retained is None:
            return
        kept, together = self.retained.retention, self.stage.unroll
        tasks = [
            _Task(worker + B.i64((kept.shared + k) * self.stage.stride), register=k)
            for k in range(kept.registers)
        ]
        for start in range(0, len(tasks), together):
            self._together(tasks[start : start + together])

    def _others(self, worker: Expr, working: Expr | None) -> None:
        """Emit the tasks that are not kept: several at once, and the remaining ones one by one.

        Guards on tasks past the last would be correct too, but they make nvcc split its vector stores into scalar
        ones.
        """
        stage = self.stage
        least, more = divmod(stage.tasks, stage.stride)
        if self.retained is None:
            # Not a constant even if it has one value: the worker's cell must be read in a loop.
            first, last = 0, tir.floordiv(B.i64(stage.tasks + stage.stride - 1) - worker, B.i64(stage.stride))
        else:
            first = self.retained.retention.tasks
            last = B.i64(least)
            if more:
                last = tir.Select(worker < B.i64(more), B.i64(least + 1), B.i64(least))
        left = last - B.i64(first) if working is None else tir.Select(working, last - B.i64(first), B.i64(0))
        steps = tir.floordiv(left, B.i64(stage.unroll))
        with B.loop("serial", steps, "task") as step:
            self._grid_stride(
                worker, last, [step * B.i64(stage.unroll) + B.i64(k) for k in range(stage.unroll)]
            )
        if stage.unroll > 1 and (more or (least - first) % stage.unroll):
            done = steps * B.i64(stage.unroll)
            with B.loop("serial", left - done, "task") as step:
                self._grid_stride(worker, last, [done + step])

    def _grid_stride(self, worker: Expr, last: Expr, positions: list[Expr]) -> None:
        """Emit the tasks at these positions among those that are not kept."""
        if self.stage.backwards:
            positions = [last - B.i64(1) - position for position in positions]
        elif self.retained is not None:
            positions = [position + B.i64(self.retained.retention.tasks) for position in positions]
        apart = self.stage.stride * (self.mapping.rows_per_block if self.stage.spread else 1)
        self._together([_Task(worker + position * B.i64(apart)) for position in positions])

    def _together(self, tasks: list[_Task]) -> None:
        """Emit tasks whose loads are all in flight before the first is evaluated."""
        if len(tasks) == 1 and not tasks[0].kept:
            self._enter(tasks[0])
            self._evaluate(tasks[0])
            return
        states = []
        for task in tasks:
            self._enter(task)
            self._load_ahead(task)
            states.append((self.load_tiles, self.in_range, self.block, self.eval))
        for task, state in zip(tasks, states):
            self.value_tiles = dict(self.hoisted)
            self.load_tiles, self.in_range, self.block, self.eval = state
            self._evaluate(task)

    def _enter(self, task: _Task) -> None:
        """Move to a task's rows."""
        m, rows = self.mapping, self.domain.rows
        assert isinstance(rows, int)
        self.value_tiles, self.load_tiles = dict(self.hoisted), dict(self.resident)
        self.in_range = None
        self.block = task.group
        row = B.i64(0) if m.split else self.row_of(task.group, rows % m.rows_per_block == 0)
        self.eval = Evaluator(self.al, row, self, buffers=self.buffers)
        for key, value in self.hoisted_values.items():
            self.eval.set_row_value(key, value)

    def row_of(self, group: Expr, exact: bool) -> Expr:
        """Return the row of this thread's slot in a group of rows. ``exact``: no group reaches past the last row."""
        if not self.stage.spread:
            return super().row_of(group, exact)
        rows = as_expr(self.domain.rows)
        row = group + self.slot * B.i64(self.stage.stride)
        self.in_range = row < rows
        return B.bind(tir.min(row, rows - B.i64(1)), "row")

    def steps_of(self, p: RowLoop) -> Extent:
        """Return the steps of a pass: none for sums of a row past the last, where other blocks have one."""
        steps = super().steps_of(p)
        if not self.stage.spread or not p.reduces:
            return steps
        return tir.Select(self.in_range, as_expr(steps), B.i64(0))

    def _load_ahead(self, task: _Task) -> None:
        """Load the tiles of the only pass: from memory, or from where they were kept."""
        (p,) = self.stage.schedule.passes
        cm = self.mapping.of(p.columns)
        for leaf in p.loads:
            if not self._streamed(leaf):
                continue
            if not task.kept or leaf not in self.kept_leaves:
                self._load_tile(leaf, p, cm, B.i64(0))
                continue
            assert self.retained is not None
            tensor, loads = self.kept_leaves[leaf], self.retained.loads(self.stage)
            kept = None if task.register is None else self.retained.registers[tensor][task.register]
            if loads:
                self._load_tile(leaf, p, cm, B.i64(0), kept)
            elif kept is not None:
                self.load_tiles[leaf] = kept
            else:
                self.load_tiles[leaf] = self.input_tile(leaf, cm.chunks * cm.vector)
                assert task.shared is not None
                self.retained.get(tensor, task.shared, self.load_tiles[leaf])

    def _evaluate(self, task: _Task) -> None:
        """Store the tiles that the task keeps, and run the passes."""
        m = self.mapping
        if task.shared is not None and self.retained is not None and self.retained.loads(self.stage):
            for leaf, tensor in self.kept_leaves.items():
                self.retained.put(tensor, task.shared, self.load_tiles[leaf])
        if not self.stage.slice.replicated:
            self._load_early()
        for p in self.stage.schedule.passes:
            self._pass(p)
        self._row_outputs()
        # All tasks of a flat domain belong to its one row, which counts once.
        counts = tir.EQ(self.block, B.i64(0)) if m.split and self.stage.tasks > 1 else None
        for key in self.stage.schedule.final_cross_row:
            self._accumulate(key, B.i64(0), counts)

    def _tail(self, columns: Extent, base: Expr) -> Expr | None:
        if not self.mapping.split:
            return super()._tail(columns, base)
        covered = self.stage.tasks * self.mapping.covered(columns)
        return None if covered == columns else base < as_expr(columns)

    # -- reductions across rows --------------------------------------------------------------------------------
    def _sums_of(self, op: Operator) -> int:
        point = next(p for o, p in self.stage.schedule.cross_row if o is op)
        if not point.per_column:
            return 1
        m = self.mapping.of(point.columns)
        return m.vector if op.output.size == 1 else m.vector * m.chunks

    def _compute(self, p: RowLoop, e: Expr, valid: Expr | None, *rest: Any) -> None:
        super()._compute(p, e, valid, *rest)
        for key in p.cross_row:
            assert self.element is not None
            self._accumulate(key, e if key[0].output.size == 1 else self.element, valid)

    def _accumulate(self, key: Any, position: Expr, valid: Expr | None) -> None:
        op = key[0]
        value = self.eval.operand(op)
        inside = B.both(valid, self.in_range)
        if inside is not None:
            # In a cell: C has no int literal for the least int32, so that a choice between both has another type.
            value = B.cell(tir.Select(inside, value, identity(op)), "operand")
        acc = self.sums[op]
        B.store(acc, combine(op.combiner or "", B.fetch(acc, position), value), [position])

    def _store_sums(self, worker: Expr, working: Expr | None) -> None:
        cross_row = self.stage.schedule.cross_row
        m, original = self.mapping, {copy: op for op, copy in self.stage.slice.copies.items()}

        def partial(op: Operator) -> Buffer:
            return self.global_buffer[self.whole.crossing.partials[original[op]]]

        scalars = [op for op, _ in cross_row if op.output.size == 1]
        if scalars:
            rows = [op for op, point in cross_row if not point.per_column]
            if rows and m.threads > 1:  # every lane of a row has the row's value: only one of them counts
                for op in rows:
                    first = tir.EQ(self.lane, B.i64(0))
                    held = self.sums[op]
                    B.store(held, tir.Select(first, B.fetch(held, 0), identity(op)), [B.i64(0)])
            own = worker if self.stage.tiles == 1 else worker * B.i64(self.stage.tiles) + self.segment
            accs, partials = [self.sums[op] for op in scalars], [partial(op) for op in scalars]
            store_scalars(
                scalars,
                accs,
                partials,
                self.grid.threads,
                self.thread,
                own,
                working,
                self.stage.partials_in_order,
            )
        for extent, ops in self.stage.column_reductions.items():
            store_columns(
                ops, [self.sums[op] for op in ops], [partial(op) for op in ops], m, m.of(extent), extent,
                self.lane, self.slot, self.thread, self.segment, worker, working, self.stage.layout.column_sums,
            )  # fmt: skip


def one_step(number: Expr) -> Expr:
    """Return the extent of a loop of one step. ``number`` is not negative.

    TVM takes no cells in conditions that are outside of loops. A constant extent of 1 would emit no loop.
    """
    return tir.Select(tir.GE(number, B.i64(0)), B.i64(1), B.i64(0))


def _buffers(stage: Stage, buffer: dict[Tensor, Buffer]) -> Buffers:
    """Return the memory of a stage's own copies of tensors."""
    return Buffers({copy: buffer[t] for t, copy in stage.slice.tensors.items() if t in buffer})
