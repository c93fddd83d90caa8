# SPDX-License-Identifier: Apache-2.0
"""Choose the inputs that the second-level cache keeps longest, if a kernel writes more than the cache holds.

Lines that are written then leave the cache in the order in which they came. Memory writes whole pages instead of
changing between reading and writing. On an H200 an RMS norm of 268 MB took 121.7 us instead of 125.5. An element-wise
operator took 121.9 us instead of 127.0, and one of two inputs 88.5 us instead of 90.4. Data that a later kernel keeps
in the cache was disturbed from 32 MB on only. Six passes over 24 MB behind the norm took as long as before.
"""

from __future__ import annotations

from dataclasses import replace

from ..iteration.loops import Leaf, RowLoop, is_streamed
from ..kernel import KernelPlan, Stage
from ..memory import traffic
from .tile import words_of


def with_resident_inputs(plan: KernelPlan) -> KernelPlan:
    """Return a plan of one stage, whose inputs get L2 residency if they pay.

    The stage must read and write so much more than the cache holds.
    """
    device, stage = plan.device, plan.stage
    moved = traffic(plan)
    if not device.cache_policies or not isinstance(moved.read, int) or not isinstance(moved.written, int):
        return plan
    if min(moved.read, moved.written) < plan.device.choices.caches_filled * device.l2_bytes:
        return plan
    # Inputs of patches are loaded element by element, or by cp.async instructions without a policy.
    transposed = stage.row_mapping.transposed
    loads = dict.fromkeys(
        leaf for p in stage.schedule.passes for leaf in _streamed(stage, p) if leaf not in transposed
    )
    if not loads:
        return plan
    if not stage.row_mapping.async_copies and _words(stage) > plan.device.choices.l2_resident_words:
        return plan
    return replace(plan, phases=((replace(stage, l2_resident=tuple(loads)),),))


def _streamed(stage: Stage, p: RowLoop) -> list[Leaf]:
    return [leaf for leaf in p.loads if is_streamed(stage.alignment.domain.rows, leaf)]


def _words(stage: Stage) -> float:
    """Return the most registers that a pass loads. The compiler keeps such loads in order, so all are in flight."""
    most = 0.0
    for p in stage.schedule.passes:
        m = stage.row_mapping.of(p.columns)
        most = max(most, m.chunks * m.vector * sum(words_of(t.dtype) for t, _ in _streamed(stage, p)))
    return most
