# SPDX-License-Identifier: Apache-2.0
"""Emit a stitch op for an llvm CPU: parallel tasks, SIMD lanes, polynomials for math."""

from __future__ import annotations

from typing import Any

from ... import compat
from ...compat import Analyzer, Expr, tir
from ...graph.extent import as_expr, product, total
from ...plan import heuristics
from ...plan.cpu.tile import CpuMapping, Lanes, Split
from ...plan.kernel import KernelPlan, Stage
from .. import builder as B
from .base import CpuEmitter
from .bfloat16 import as_bits
from .columns import ColumnEmitter, SplitEmitter
from .rows import RowEmitter


def emit_cpu(func: Any, plan: KernelPlan) -> Any:
    """The scheduled PrimFunc that computes ``func`` as ``plan`` says.

    Raises:
        ValueError: when the plan was made for a GPU.
    """
    with B.kernel() as body:
        emit_stage(plan.stage)
    if not compat.COMPUTES_BFLOAT16 and any(
        b is not None and compat.buffer_dtype(b) == "bfloat16" for _, b in compat.prim_func_params(func)
    ):
        body[0] = as_bits(body[0])
    return func.with_body(body[0]).with_attr(compat.attribute("is_scheduled"), True)


def emit_stage(stage: Stage) -> None:
    """Emit what a stage computes, into the kernel that is being built.

    Raises:
        ValueError: when the plan was made for a GPU.
    """
    mapping = stage.mapping
    if not isinstance(mapping, CpuMapping):
        raise ValueError("the plan was not made for a CPU")
    if mapping.parallel is not None:
        _emitter(stage, mapping).emit(mapping.parallel)
        return
    few = _few(stage, mapping)
    if len(stage.graph.operators) > heuristics.CPU_OPERATORS_TWICE or few is None:
        _emitter(stage, mapping).emit(True)
        return
    B.either(few, lambda: _emitter(stage, mapping).emit(False), lambda: _emitter(stage, mapping).emit(True))


def _few(stage: Stage, mapping: CpuMapping) -> Expr | None:
    """Whether there is too little work for a parallel region."""
    domain = stage.alignment.domain
    if domain.flat and stage.schedule.passes:
        count = stage.schedule.passes[0].columns
    else:
        symbolic = [e for e in stage.schedule.spaces if not isinstance(e, int)]
        count = product([domain.rows, total(symbolic)]) if symbolic else domain.rows
    if isinstance(count, int) or _least(count) > mapping.serial_rows:
        return None
    return tir.LE(as_expr(count), B.i64(mapping.serial_rows))


def _least(count: Expr) -> int:
    """What a number of rows that is not 0 is at least: where that is many, those that are few are none.

    From such a condition TVM would conclude that a symbol is 0, and refuse the divisions of indices by it.
    """
    modular = Analyzer().modular_set(as_expr(count))
    return int(modular.coeff) if int(modular.base) == 0 else 1


def _emitter(stage: Stage, mapping: CpuMapping) -> CpuEmitter:
    if mapping.divide is Split.COLUMNS:
        return SplitEmitter(stage)
    return RowEmitter(stage) if mapping.lanes is Lanes.ROWS else ColumnEmitter(stage)
