# SPDX-License-Identifier: Apache-2.0
"""Loops over tasks: parallel, serial, or decided in each call by the amount of work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ... import compat
from ...compat import Analyzer, Expr, T, tir
from ...graph.extent import Extent, as_expr, is_number, product, total
from ...plan.cpu.tile import CpuMapping
from ...plan.kernel import Stage
from .. import builder as B

SERIAL_WHERE = "tvm_stitch.serial_where"
"""The attribute of a parallel loop with the condition under which a serial loop is faster. A backend that ignores it
only loses time."""


def times(kind: str, extent: Extent, name: str) -> Any:
    """Open a loop over an extent."""
    return B.loop(kind, extent if isinstance(extent, int) else as_expr(extent), name)


@contextmanager
def task_loop(parallel: bool | None, few: Expr | None, count: Extent) -> Iterator[Expr]:
    """Open the loop over ``count`` tasks.

    Args:
        parallel: whether tasks run in parallel, or None if each call decides that.
        few: the condition under which a call runs them serially, or None if no call does.
        count: the number of tasks.
    """
    kind = "serial" if parallel is False else "parallel"
    if few is None or is_number(count, 1):
        with times(kind, count, "task") as task:
            yield task
        return
    with T.attr(compat.const(0, "int32"), SERIAL_WHERE, few), times(kind, count, "task") as task:
        yield task


def few_points(stage: Stage, mapping: CpuMapping) -> Expr | None:
    """Return the condition that there is too little work for a parallel region, or None if there is always enough."""
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
    """Return a lower bound of a number of rows that is not 0.

    If it is high, no number of rows is small except 0. From a condition on such a number, TVM would conclude that a
    symbol is 0, and refuse the divisions of indices by it.
    """
    modular = Analyzer().modular_set(as_expr(count))
    return int(modular.coeff) if int(modular.base) == 0 else 1
