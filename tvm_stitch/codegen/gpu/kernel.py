# SPDX-License-Identifier: Apache-2.0
"""Emit a plan for a GPU: one stage whose mapping is its launch, or phases of stages on a grid."""

from __future__ import annotations

from typing import Any

from ...plan.kernel import KernelPlan
from .. import builder as B
from .dependent_launch import COOPERATIVE, launch_attributes
from .grid import GridEmitter
from .launch_check import check_multiprocessors
from .memory.scratch import declare_scratch, finish
from .persistent import PersistentEmitter
from .rows import RowEmitter
from .variant_choice import launched


def emit_gpu(func: Any, plan: KernelPlan) -> Any:
    """Return the scheduled PrimFunc (root block, thread bindings) that computes ``func`` according to ``plan``."""
    attributes = COOPERATIVE
    with B.kernel() as body:
        scratch = declare_scratch(plan.scratch, barrier=plan.cooperative)
        if plan.cooperative:
            check_multiprocessors(plan.device, plan.graph.outputs[0].buffer, _multiprocessors(plan))
        if plan.grid_wide:
            GridEmitter(plan, scratch).emit()
            attributes = launch_attributes(plan.device, True)
        else:
            partials = {op: scratch[plan.scratch_of[tensor]] for op, tensor in plan.crossing.partials.items()}
            stages = [*(variant.stage for variant in plan.variants), plan.stage]
            for stage, once in zip(stages, launched(plan)):
                # Not in a condition: TVM mistakes a condition of the host for one around the barriers of its kernel.
                with B.loop("serial", once, "chosen"):
                    emitter = PersistentEmitter if stage.row_mapping.workers else RowEmitter
                    emitter(stage, scratch, partials).emit()
    return finish(func, body[0], scratch, attributes if plan.cooperative else None)


def _multiprocessors(plan: KernelPlan) -> int | None:
    """Return how many multiprocessors the blocks of a cooperative launch fill, or None for all of the device."""
    if plan.grid is not None:
        return -(-plan.grid.blocks // plan.grid.blocks_per_sm)
    m, rows = plan.stage.row_mapping, plan.stage.alignment.domain.rows
    assert isinstance(rows, int), "rows with a grid barrier are static"
    return -(-rows * m.row_splits // m.blocks_per_sm) if m.blocks_per_sm else None
