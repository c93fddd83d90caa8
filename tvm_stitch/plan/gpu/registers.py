# SPDX-License-Identifier: Apache-2.0
"""Registers of a thread in a stage of one pass, and the inputs worth keeping in the free ones."""

from __future__ import annotations

from dataclasses import replace

from ...graph.dtype import item_bytes
from ...graph.extent import extent_key
from ..iteration.domain import At
from ..kernel import Stage


def stage_words(stage: Stage) -> float:
    """Return the registers of a thread's tiles in a stage: hoisted values, sums, and tasks in flight."""
    total = 0.0
    for p in stage.schedule.passes:
        m = stage.row_mapping.of(p.columns)
        columns = m.vector * m.chunks
        hoisted = sum(_words(leaf[0].dtype) for leaf in stage.resident)
        hoisted += sum(
            1 for _, point in stage.schedule.hoisted if extent_key(point.columns) == extent_key(p.columns)
        )
        loads = sum(_words(t.dtype) for t, point in p.loads if point.at is At.FULL)
        shared = sum(
            _words(leaf[0].dtype)
            for leaf in p.loads
            if leaf[1].at is not At.FULL and leaf not in stage.resident
        )
        outputs = sum(_words(op.output.dtype) for op, _ in p.outputs)
        total += columns * (hoisted + loads * stage.unroll + len(p.cross_row)) + m.vector * (outputs + shared)
    return total


def with_resident(stage: Stage, words: int) -> Stage:
    """Return the stage with a thread's columns of shared inputs (scales, biases) in up to ``words`` registers.

    A thread has the same columns in all of its tasks. Only blocks of several tasks keep them, and only in stages of
    one pass: other stages have tiles that come and go.
    """
    few = stage.tasks < 2 * stage.stride
    if stage.row_mapping.matrix is not None:
        return stage
    if len(stage.schedule.passes) != 1 or stage.row_mapping.split or few or stage.slice.replicated:
        return stage
    (p,) = stage.schedule.passes
    if stage.row_mapping.of(p.columns).steps != 1:
        return stage
    for leaf in p.loads:
        if leaf[1].at is At.COLUMN and leaf[0].dtype != "bool":
            more = replace(stage, resident=(*stage.resident, leaf))
            stage = more if stage_words(more) <= words else stage
    return stage


def _words(dtype: str) -> float:
    """Return the registers of an element: narrow ones are unpacked to be computed with."""
    return max(1.0, item_bytes(dtype) / 4)
