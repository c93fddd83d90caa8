# SPDX-License-Identifier: Apache-2.0
"""Emit a grid-wide plan: phases of parts, divided by grid barriers, on blocks that stay for all of it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from .. import compat
from ..compat import Buffer, Expr, T, tir
from ..graph.dtype import compute_dtype
from ..graph.extent import Extent, as_expr
from ..graph.ir import Operator, Tensor
from ..plan.alignment import Key
from ..plan.grid import GridPart, GridPlan
from ..plan.mapping import ColumnMapping
from ..plan.passes import Pass
from ..plan.plan import StitchPlan
from . import builder as B
from .combine import combine, identity
from .evaluator import Evaluator, convert, short_name
from .gpu import COOPERATIVE, RowEmitter, bound_registers
from .gpu_fold import accumulator, store_columns, store_scalars, total
from .grid_barrier import grid_barrier
from .launch_check import check_multiprocessors
from .scratch import declare_scratch, finish


def emit_grid(func: Any, plan: GridPlan) -> Any:
    """The scheduled PrimFunc that computes ``func`` in the plan's phases."""
    with B.kernel() as body:
        scratch = declare_scratch(plan.scratch, barrier=plan.cooperative)
        GridEmitter(plan, scratch).emit()
    return finish(func, body[0], scratch, COOPERATIVE if plan.cooperative else None)


class GridEmitter:
    """Emits the kernel around the parts: launch, barriers, and the values that cross between phases."""

    def __init__(self, plan: GridPlan, scratch: dict[str, Buffer]):
        self.plan, self.scratch = plan, scratch
        self.buffer: dict[Tensor, Buffer] = {t: t.buffer for t in [*plan.graph.inputs, *plan.graph.outputs]}

    def emit(self) -> None:
        plan = self.plan
        if plan.cooperative:
            check_multiprocessors(
                plan.device, plan.graph.outputs[0].buffer, -(-plan.blocks // plan.blocks_per_sm)
            )
        kernels = [range(len(plan.phases))] if plan.cooperative else [[f] for f in range(len(plan.phases))]
        for phases in kernels:
            with ExitStack() as stack:
                self._launch(stack)
                for number in phases:
                    if number != phases[0]:
                        grid_barrier(self.scratch)
                    self._finish_scalars(number, number != phases[0])
                    for k, part in enumerate(plan.phases[number]):
                        name = f"{number}_{k}"
                        PartEmitter(part, plan, self.buffer, self.block, self.thread, name).run()

    def _launch(self, stack: ExitStack) -> None:
        plan = self.plan
        self.block = stack.enter_context(T.launch_thread("blockIdx.x", B.i64(plan.blocks)))
        self.thread = stack.enter_context(T.launch_thread("threadIdx.x", B.i64(plan.threads)))
        bound_registers(stack, plan.blocks_per_sm)
        self._views()

    def _views(self) -> None:
        """Scratch buffers in the shapes of the tensors that live in them; shared memory for a block's own values."""
        for k, tensor in enumerate(self.plan.partition.shared):
            shape = [int(e) for e in tensor.shape] or [1]
            self.buffer[tensor] = B.local(shape, compute_dtype(tensor.dtype), f"own_{k}", "shared")
        for tensor, name in self.plan.place.items():
            shape = [as_expr(e) for e in tensor.shape] or [B.i64(1)]
            label = f"{tensor.name.split('_intermediate')[0]}_global"
            self.buffer[tensor] = compat.view(self.scratch[name], shape, label)

    def _finish_scalars(self, phase: int, resident: bool) -> None:
        """Every block finishes the reductions to one result that the phase reads or that the last one made.

        A ``resident`` block has those of earlier phases already.
        """
        found = self.plan.partition
        read = {t for part in self.plan.phases[phase] for t in part.part.tensors}
        ops = [
            op
            for op, f in found.scalars.items()
            if f == phase - 1 or (f < phase and not resident and op.output in read)
        ]
        if not ops:
            return
        partials = [self.buffer[found.partials[op]] for op in ops]
        counts = [int(found.partials[op].shape[-1]) for op in ops]
        results = total(ops, partials, counts, self.plan.threads, self.thread)
        for op, result in zip(ops, results):
            if op.output in self.plan.graph.outputs and found.scalars[op] == phase - 1:
                first = tir.And(tir.EQ(self.block, B.i64(0)), tir.EQ(self.thread, B.i64(0)))
                with B.when(first):
                    value = convert(result, op.output.dtype)
                    B.store(op.output.buffer, value, [B.i64(0)] * len(op.output.shape))
            held = B.local([1] * max(1, len(op.output.shape)), compute_dtype(op.output.dtype), "total")
            B.store(held, result, [B.i64(0)] * max(1, len(op.output.shape)))
            self.buffer[op.output] = held


class PartEmitter(RowEmitter):
    """Emits one part: a loop over the block's tasks around the passes of its rows, then the sums across rows."""

    def __init__(
        self,
        part: GridPart,
        plan: GridPlan,
        buffer: dict[Tensor, Buffer],
        block: Expr,
        thread: Expr,
        name: str,
    ):
        super().__init__(StitchPlan(part.graph, plan.device, part.alignment, part.schedule, part.mapping))
        self.part, self.grid = part, plan
        self.global_buffer = buffer
        for tensor, copy in part.part.tensors.items():
            if tensor in buffer:
                copy.buffer = buffer[tensor]
                copy.dtype = compat.buffer_dtype(
                    buffer[tensor]
                )  # scratch is as wide as what is computed with
        m = part.mapping
        self.grid_block, self.thread = block, thread
        self.lane, self.slot = B.i64(0), B.i64(0)
        # Powers of two, in bits: TVM 0.27 takes (x % 32 + y) // 8 for (x + y) % 32 // 8 in indices of reshapes.
        if m.threads > 1:
            self.lane = thread
            if m.rows_per_block > 1:
                self.lane = thread & B.i64(m.threads - 1)
        if m.rows_per_block > 1:
            self.slot = thread
            if m.threads > 1:
                self.slot = thread >> B.i64(m.threads.bit_length() - 1)
        self.name = name
        self.sums: dict[Operator, Buffer] = {}
        self.hoisted: dict[Key, Buffer] = {}
        self.hoisted_values: dict[Key, Expr] = {}

    def run(self) -> None:
        """Emit the part."""
        part = self.part
        blocks = self.grid.blocks
        turn = self.grid_block
        if part.offset:
            turn = tir.floormod(turn + B.i64(blocks - part.offset), B.i64(blocks))
        self.segment = B.i64(0)
        worker = turn
        if part.tiles > 1:
            self.segment = B.cell(tir.floormod(turn, B.i64(part.tiles)), "tile")
            worker = tir.floordiv(turn, B.i64(part.tiles))
        worker = B.cell(B.i64(0) if part.part.replicated else worker, "worker")
        for key in self.plan.schedule.folds:
            self.sums[key[0]] = accumulator(key[0], self._sums_of(key[0]))
        self._hoist(tir.Select(tir.GE(worker, B.i64(0)), B.i64(1), B.i64(0)))
        step = part.stride * part.unroll
        steps = tir.floordiv(B.i64(part.tasks + step - 1) - worker, B.i64(step))
        working = None
        if part.stride * part.tiles < blocks and not part.part.replicated:
            working = worker < B.i64(part.stride)
            steps = tir.Select(working, steps, B.i64(0))
        with B.loop("serial", steps, "task") as task:
            for k in range(part.unroll):
                group = worker + (task * B.i64(part.unroll) + B.i64(k)) * B.i64(part.stride)
                self._task(group)
        if part.part.replicated or (working is not None and self.mapping.threads > self.grid.device.warp):
            # Before others read what a replicated part stored; and blocks without a task miss the barriers in the
            # loop, which TVM counts on for what follows.
            B.evaluate(compat.intrinsic("int32", "tvm_storage_sync", compat.string("shared")))
        self._store_sums(worker, working)

    def _hoist(self, once: Expr) -> None:
        """Evaluate what no row changes: a value in all, or one for each of the thread's columns.

        In a loop of ``once`` steps, which is 1: TVM takes no cells in conditions that stand in no loop.
        """
        self.eval = Evaluator(self.al, B.i64(0), self)
        for key in self.plan.schedule.hoisted:
            if not key[1].per_column:
                self.eval.bind_row(key)
                self.hoisted_values[key] = B.cell(self.eval.value(key), short_name(key[0]))
                continue
            cm = self.mapping.of(key[1].columns)
            tile = self._tile(cm, compute_dtype(key[0].output.dtype), short_name(key[0]))
            with B.loop("serial", once, "once"):
                for chunk in range(cm.chunks):
                    base = self._base(cm, B.i64(0), B.i64(chunk))
                    with B.when(self._tail(key[1].columns, cm, base)):
                        for e in range(cm.vector):
                            self.element = B.i64(chunk * cm.vector + e)
                            self.eval.at_column(base + B.i64(e))
                            B.store(tile, self.eval.value(key), [self.element])
            self.eval.at_column(None)
            self.element = None
            self.hoisted[key] = self.value_tiles[key] = tile

    def _task(self, group: Expr) -> None:
        m, rows, part = self.mapping, self.domain.rows, self.part
        assert isinstance(rows, int)
        self.value_tiles, self.load_tiles = dict(self.hoisted), {}
        self.in_range = alive = None
        if part.unroll > 1 and part.tasks % (part.stride * part.unroll) != 0:
            alive = group < B.i64(part.tasks)
            group = tir.min(group, B.i64(part.tasks - 1))
        if part.backwards:
            group = B.i64(part.tasks - 1) - group
        self.block = group
        if m.split:
            row: Expr = B.i64(0)
        else:
            row = self.row_of(group, rows % m.rows_per_block == 0)
        if alive is not None:
            self.in_range = alive if self.in_range is None else tir.And(alive, self.in_range)
        self.eval = Evaluator(self.al, row, self)
        for key, value in self.hoisted_values.items():
            self.eval.set_row_value(key, value)
        for p in self.plan.schedule.passes:
            self._pass(p)
        self._row_outputs()
        # All tasks of a flat domain are of its one row, which counts once.
        counts = tir.EQ(self.block, B.i64(0)) if m.split and part.tasks > 1 else None
        for key in self.plan.schedule.row_folds:
            self._accumulate(key, B.i64(0), counts)

    def _tail(self, columns: Extent, cm: ColumnMapping, base: Expr) -> Expr | None:
        if not self.mapping.split:
            return super()._tail(columns, cm, base)
        covered = self.part.tasks * self.mapping.covered(columns)
        return None if covered == columns else base < as_expr(columns)

    # -- folds --------------------------------------------------------------------------------------------------
    def _sums_of(self, op: Operator) -> int:
        point = next(p for o, p in self.plan.schedule.folds if o is op)
        if not point.per_column:
            return 1
        m = self.mapping.of(point.columns)
        return m.vector if op.output.size == 1 else m.vector * m.chunks

    def _compute(self, p: Pass, e: Expr, valid: Expr | None, *rest: Any) -> None:
        super()._compute(p, e, valid, *rest)
        for key in p.folds:
            assert self.element is not None
            self._accumulate(key, e if key[0].output.size == 1 else self.element, valid)

    def _accumulate(self, key: Any, place: Expr, valid: Expr | None) -> None:
        op = key[0]
        value = self.eval.operand(op)
        inside = self.in_range if valid is None else valid
        if valid is not None and self.in_range is not None:
            inside = tir.And(valid, self.in_range)
        if inside is not None:
            # In a cell: C has no int literal for the least int32, so that a choice between both has another type.
            value = B.cell(tir.Select(inside, value, identity(op)), "operand")
        acc = self.sums[op]
        B.store(acc, combine(op.combiner or "", B.fetch(acc, place), value), [place])

    def _store_sums(self, worker: Expr, working: Expr | None) -> None:
        folds = self.plan.schedule.folds
        m, original = self.mapping, {copy: op for op, copy in self.part.part.copies.items()}

        def partial(op: Operator) -> Buffer:
            return self.global_buffer[self.grid.partition.partials[original[op]]]

        scalars = [op for op, _ in folds if op.output.size == 1]
        if scalars:
            rows = {op for op, point in folds if not point.per_column}
            if rows and m.threads > 1:  # every lane of a row has the row's value: one of them counts
                for op in rows:
                    first = tir.EQ(self.lane, B.i64(0))
                    held = self.sums[op]
                    B.store(held, tir.Select(first, B.fetch(held, 0), identity(op)), [B.i64(0)])
            own = worker if self.part.tiles == 1 else worker * B.i64(self.part.tiles) + self.segment
            self._store_scalars(scalars, [partial(op) for op in scalars], own, working)
        for text in dict.fromkeys(str(point.columns) for op, point in folds if op.output.size != 1):
            ops = [op for op, point in folds if op.output.size != 1 and str(point.columns) == text]
            extent = next(int(point.columns) for op, point in folds if op is ops[0])
            store_columns(
                ops, [self.sums[op] for op in ops], [partial(op) for op in ops], m, m.of(extent), extent,
                self.lane, self.slot, self.thread, self.segment, worker, working, f"{self.name}_{text}",
            )  # fmt: skip

    def _store_scalars(
        self, ops: list[Operator], partials: list[Buffer], worker: Expr, working: Expr | None
    ) -> None:
        accs = [self.sums[op] for op in ops]
        store_scalars(ops, accs, partials, self.grid.threads, self.thread, worker, working)
