# SPDX-License-Identifier: Apache-2.0
"""Emit a stitch op for an llvm CPU: parallel tasks, SIMD lanes, polynomials for math."""

from __future__ import annotations

from typing import Any

from ... import compat
from ...plan.cpu.tile import CpuMapping, Lanes, Split
from ...plan.kernel import KernelPlan, Stage
from .. import builder as B
from .base import CpuEmitter
from .columns import ColumnEmitter, SplitEmitter
from .half import as_bits
from .rows import RowEmitter
from .weights import WeightEmitter


def emit_cpu(func: Any, plan: KernelPlan) -> Any:
    """Return the scheduled PrimFunc that computes ``func`` according to ``plan``.

    Raises:
        ValueError: if the plan was made for a GPU.
    """
    with B.kernel() as body:
        emit_stage(plan.stage)
    if not compat.COMPUTES_BFLOAT16 and any(
        b is not None and compat.buffer_dtype(b) == "bfloat16" for _, b in compat.prim_func_params(func)
    ):
        body[0] = as_bits(body[0])
    return func.with_body(body[0]).with_attr(compat.attribute("is_scheduled"), True)


def emit_stage(stage: Stage) -> None:
    """Emit a stage into the kernel that is being built.

    Raises:
        ValueError: if the plan was made for a GPU.
    """
    mapping = stage.mapping
    if not isinstance(mapping, CpuMapping):
        raise ValueError("the plan was not made for a CPU")
    _emitter(stage, mapping).emit()


def _emitter(stage: Stage, mapping: CpuMapping) -> CpuEmitter:
    if mapping.weights is not None:
        return WeightEmitter(stage)
    if mapping.divide is Split.COLUMNS:
        return SplitEmitter(stage)
    return RowEmitter(stage) if mapping.lanes is Lanes.ROWS else ColumnEmitter(stage)
