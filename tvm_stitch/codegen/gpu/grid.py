# SPDX-License-Identifier: Apache-2.0
"""Emit a grid-wide plan: phases of stages with grid barriers in between, on blocks that stay resident throughout."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from ... import compat
from ...compat import Buffer, T, tir
from ...graph.dtype import compute_dtype
from ...graph.extent import as_expr
from ...graph.ir import Tensor
from ...plan.kernel import KernelPlan, Stage
from .. import builder as B
from ..evaluator import convert
from .cross_row_reduction import total
from .dependent_launch import wait_for_kernels_in_front
from .grid_barrier import grid_barrier
from .launch_bounds import bound_registers
from .matrix.stage import MatrixStageEmitter
from .memory.retained import Retained
from .stage import StageEmitter


class GridEmitter:
    """Emits the kernel around the stages: launch, barriers, and the values that cross between phases."""

    def __init__(self, plan: KernelPlan, scratch: dict[str, Buffer]):
        self.plan, self.scratch = plan, scratch
        self.buffer: dict[Tensor, Buffer] = {t: t.buffer for t in [*plan.graph.inputs, *plan.graph.outputs]}

    def emit(self) -> None:
        plan = self.plan
        kernels = [range(len(plan.phases))] if plan.cooperative else [[f] for f in range(len(plan.phases))]
        for phases in kernels:
            with ExitStack() as stack:
                self._launch(stack)
                if plan.cooperative:
                    wait_for_kernels_in_front(plan.device)
                for number in phases:
                    emitters = [self._emitter(stage) for stage in plan.phases[number]]
                    # Behind the loads of the phase before, which would wait for these otherwise.
                    for emitter in emitters:
                        emitter.load_ahead()
                    if number != phases[0]:
                        grid_barrier(self.scratch)
                    self._finish_scalars(number, number != phases[0])
                    for emitter in emitters:
                        emitter.run()

    def _emitter(self, stage: Stage) -> StageEmitter:
        """Return what emits a stage."""
        retained = self.retained
        if retained is not None and stage not in retained.retention.stages:
            retained = None
        arguments = (stage, self.plan, self.buffer, self.block, self.thread, retained)
        if stage.row_mapping.matrix is None:
            return StageEmitter(*arguments)
        return MatrixStageEmitter(*arguments, ring=self.ring)

    def _launch(self, stack: ExitStack) -> None:
        plan, grid = self.plan, self.plan.shared_grid
        self.block = stack.enter_context(T.launch_thread("blockIdx.x", B.i64(grid.blocks)))
        self.thread = stack.enter_context(T.launch_thread("threadIdx.x", B.i64(grid.threads)))
        bound_registers(stack, grid.blocks_per_sm)
        self._views()
        self.ring = None
        if plan.ring is not None:
            self.ring = B.whole(B.dynamic(replace(plan.ring.buffer, unused=plan.shared.padding)))
        self.retained = None if plan.retention is None else Retained(plan, plan.retention, self.thread)

    def _views(self) -> None:
        """Create scratch views in the shapes of the tensors in them, and shared memory for a block's own values."""
        own = {
            wanted: B.local([wanted.elements], wanted.dtype, wanted.name, "shared")
            for wanted in dict.fromkeys(self.plan.own.values())
        }
        for k, (tensor, wanted) in enumerate(self.plan.own.items()):
            shape = [as_expr(e) for e in tensor.shape] or [B.i64(1)]
            self.buffer[tensor] = compat.view(own[wanted], shape, f"own_value_{k}")
        for tensor, name in self.plan.scratch_of.items():
            shape = [as_expr(e) for e in tensor.shape] or [B.i64(1)]
            label = f"{tensor.name.split('_intermediate')[0]}_global"
            self.buffer[tensor] = compat.view(self.scratch[name], shape, label)

    def _finish_scalars(self, phase: int, resident: bool) -> None:
        """Finish, in every block, the reductions to one result that the phase reads or that the last phase computed.

        A ``resident`` block already has the results of earlier phases.
        """
        crossing = self.plan.crossing
        read = {t for stage in self.plan.phases[phase] for t in stage.slice.tensors}
        ops = [
            op
            for op, f in crossing.scalars.items()
            if f == phase - 1 or (f < phase and not resident and op.output in read)
        ]
        if not ops:
            return
        partials = [self.buffer[crossing.partials[op]] for op in ops]
        counts = [int(crossing.partials[op].shape[-1]) for op in ops]
        most_in_order = self.plan.device.choices.partials_in_order
        results = total(ops, partials, counts, self.plan.shared_grid.threads, self.thread, most_in_order)
        for op, result in zip(ops, results):
            if op.output in self.plan.graph.outputs and crossing.scalars[op] == phase - 1:
                first = tir.And(tir.EQ(self.block, B.i64(0)), tir.EQ(self.thread, B.i64(0)))
                with B.when(first):
                    value = convert(result, op.output.dtype)
                    B.store(op.output.buffer, value, [B.i64(0)] * len(op.output.shape))
            held = B.local([1] * max(1, len(op.output.shape)), compute_dtype(op.output.dtype), "total")
            B.store(held, result, [B.i64(0)] * max(1, len(op.output.shape)))
            self.buffer[op.output] = held
