# SPDX-License-Identifier: Apache-2.0
"""Registers of a thread in a part of a grid-wide plan of one pass, and what is worth keeping in the free ones."""

from __future__ import annotations

from dataclasses import replace

from ...graph.dtype import item_bytes
from ...graph.extent import extent_key
from ..grid_plan import GridPart
from ..iteration.domain import At


def part_words(part: GridPart) -> float:
    """Registers that a thread's tiles take while a part is evaluated: hoisted values, sums, and tasks in flight."""
    total = 0.0
    for p in part.schedule.passes:
        m = part.mapping.of(p.columns)
        columns = m.vector * m.chunks
        hoisted = sum(_words(leaf[0].dtype) for leaf in part.resident)
        hoisted += sum(
            1 for _, point in part.schedule.hoisted if extent_key(point.columns) == extent_key(p.columns)
        )
        loads = sum(_words(t.dtype) for t, point in p.loads if point.at is At.FULL)
        shared = sum(
            _words(leaf[0].dtype)
            for leaf in p.loads
            if leaf[1].at is not At.FULL and leaf not in part.resident
        )
        outputs = sum(_words(op.output.dtype) for op, _ in p.outputs)
        total += columns * (hoisted + loads * part.unroll + len(p.folds)) + m.vector * (outputs + shared)
    return total


def with_resident(part: GridPart, words: int) -> GridPart:
    """The part with a thread's columns of what all rows share (scales, biases) in registers, as far as ``words`` allow.

    A thread has the same columns in all of its tasks. Only for blocks of several tasks, and in parts of one pass:
    others have tiles that come and go.
    """
    few = part.tasks < 2 * part.stride
    if len(part.schedule.passes) != 1 or part.mapping.split or few or part.part.replicated:
        return part
    (p,) = part.schedule.passes
    if part.mapping.of(p.columns).steps != 1:
        return part
    for leaf in p.loads:
        if leaf[1].at is At.COLUMN and leaf[0].dtype != "bool":
            more = replace(part, resident=(*part.resident, leaf))
            part = more if part_words(more) <= words else part
    return part


def _words(dtype: str) -> float:
    """Registers an element takes: narrow ones are unpacked to be computed with."""
    return max(1.0, item_bytes(dtype) / 4)
