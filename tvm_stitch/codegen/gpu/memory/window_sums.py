# SPDX-License-Identifier: Apache-2.0
"""Add up the terms of a window group by group: load a group's elements of a vector of columns, and add them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from .... import compat
from ....compat import Buffer, Expr
from ....graph.dtype import compute_dtype
from ....plan.gpu.mapping import ColumnMapping
from ....plan.iteration.guarded_loads import GroupedSum
from ... import builder as B
from .guarded_loads import Loaded, load_slot

if TYPE_CHECKING:
    from .row_memory import RowMemory


def add_up(
    memory: RowMemory, loaded: Loaded, grouped: GroupedSum, cm: ColumnMapping, column: Expr, start: Expr,
    lanes: Callable[[], AbstractContextManager[Expr]],
) -> Buffer:  # fmt: skip
    """Emit a sum of windows for a vector of columns, and return the tile that has it.

    Args:
        memory: the kernel's memory.
        loaded: the tiles of the step, and its conditions.
        grouped: the sum.
        cm: how the columns of the pass are divided.
        column, start: the vector's first column, and its position in the tiles.
        lanes: a loop over the vector's columns. The evaluator is at the column that the loop's variable counts.
    """
    found, evaluator = grouped.of, memory.eval
    tile = B.local([cm.vector], compute_dtype(compat.dtype_of(found.nodes[-1])), "window")
    for group in grouped.groups:
        for slot in group.slots:
            load_slot(memory, loaded, slot, cm, column, start)
        with lanes() as e:
            total: Expr | None = None if group.terms[0] == 0 else B.fetch(tile, e)
            for number in group.terms:
                term = evaluator.window_term(found.key, found.terms[number], found.begins[number])
                total = term if total is None else evaluator.joined(found.nodes[number - 1], total, term)
            assert total is not None
            B.store(tile, total, [e])
    return tile
