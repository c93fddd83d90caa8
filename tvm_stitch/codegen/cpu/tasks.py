# SPDX-License-Identifier: Apache-2.0
"""Loops over tasks: in parallel, one after the other, or as the amount of work says that a call turns out to have."""

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
"""The attribute that says of a parallel loop where it had better be serial. Who ignores it loses time only."""


def times(kind: str, extent: Extent, name: str) -> Any:
    """A loop over an extent."""
    return B.loop(kind, extent if isinstance(extent, int) else as_expr(extent), name)


@contextmanager
def task_loop(parallel: bool | None, few: Expr | None, count: Extent) -> Iterator[Expr]:
    """The loop over ``count`` tasks.

    Args:
        parallel: whether they run in parallel; None where that is decided in each call.
        few: the condition, then, under which they do not; None where they always do.
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
    """Whether there is too little work for a parallel region; None where there never is."""
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
