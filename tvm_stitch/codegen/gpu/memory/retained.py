# SPDX-License-Identifier: Apache-2.0
"""Emit retention: the buffers in which a block keeps the loads of its first tasks, and the copies to and from them."""

from __future__ import annotations

from .... import compat
from ....compat import Buffer, Expr
from ....graph.dtype import item_bytes
from ....graph.ir import Tensor
from ....plan.gpu.mapping import ColumnMapping
from ....plan.kernel import InterPhaseReuse, KernelPlan, Stage
from ... import builder as B


class Retained:
    """Shared memory and registers of a kernel for its plan's retention.

    A thread reads from shared memory only what it wrote itself, so no barrier is needed in between. Threads' vectors
    are adjacent, so that a warp has no bank conflicts.
    """

    def __init__(self, plan: KernelPlan, retention: InterPhaseReuse, thread: Expr):
        self.retention, self.threads, self.thread = retention, plan.shared_grid.threads, thread
        (p,) = retention.stages[0].schedule.passes
        self.columns: ColumnMapping = retention.stages[0].row_mapping.of(p.columns)
        self.shared: dict[Tensor, Buffer] = {}
        self.registers: dict[Tensor, list[Buffer]] = {}
        elements = self.columns.vector * self.columns.chunks
        for i, t in enumerate(retention.tensors):
            dtype = compat.buffer_dtype(t.buffer)
            if retention.buffers:
                self.shared[t] = B.dynamic(retention.buffers[i])
            self.registers[t] = [
                B.local([elements], dtype, f"{t.name}_kept_{k}") for k in range(retention.registers)
            ]

    def loads(self, stage: Stage) -> bool:
        """Return True for the stage that fills the buffers."""
        return stage is self.retention.stages[0]

    def put(self, tensor: Tensor, task: Expr, tile: Buffer) -> None:
        """Copy a thread's tile of a task to shared memory."""
        self._copy(tensor, task, tile, put=True)

    def get(self, tensor: Tensor, task: Expr, tile: Buffer) -> None:
        """Copy a thread's tile of a task from shared memory."""
        self._copy(tensor, task, tile, put=False)

    def _copy(self, tensor: Tensor, task: Expr, tile: Buffer, put: bool) -> None:
        memory, m = self.shared[tensor], self.columns
        piece = min(m.vector, 16 // item_bytes(tensor.dtype))
        for chunk in range(m.chunks):
            position = (task * B.i64(m.chunks) + B.i64(chunk)) * B.i64(self.threads) + self.thread
            for start in range(0, m.vector, piece):
                with B.loop("vectorized", piece, "v") as v:
                    there = position * B.i64(m.vector) + (B.i64(start) + v)
                    here = B.i64(chunk * m.vector + start) + v
                    if put:
                        B.store(memory, B.fetch(tile, here), [there])
                    else:
                        B.store(tile, B.fetch(memory, there), [here])
