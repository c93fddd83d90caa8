# SPDX-License-Identifier: Apache-2.0
"""Lay out the scratch of a grid-wide plan: buffers in device memory for the values that cross between phases.

Buffers are reused by liveness over the phases. The paper plans shared memory by a dominator tree. Phases follow
each other, so the first and the last use of a value are enough.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph.dtype import compute_dtype
from ...graph.ir import Tensor
from ..kernel import KernelPlan, Scratch, Stage


def with_workspace(plan: KernelPlan) -> KernelPlan:
    """Return the plan with a buffer for every global tensor that is not an output.

    Tensors that are not live together share a buffer.

    A tensor lives from the phase that writes it to the last one that reads it. Between the last reads of a buffer's
    tensor and the first writes of the next there is a barrier.
    """
    lives, outputs, scratch_of = _lives(plan), set(plan.graph.outputs), dict[Tensor, str]()
    free: list[tuple[str, str, int, int]] = []  # name, dtype, elements, last phase
    for tensor in sorted((t for t in lives if t not in outputs), key=lambda t: lives[t][0]):
        (first, last), size, stored = lives[tensor], int(tensor.size), _stored_dtype(plan, tensor)
        for i, (name, dtype, room, until) in enumerate(free):
            if dtype == stored and until < first:
                free[i] = (name, dtype, max(room, size), last)
                scratch_of[tensor] = name
                break
        else:
            name = f"scratch{len(free)}"
            free.append((name, stored, size, last))
            scratch_of[tensor] = name
    scratch = tuple(Scratch(name, (size,), dtype) for name, dtype, size, _ in free)
    return replace(plan, scratch=scratch, scratch_of=scratch_of)


def _stored_dtype(plan: KernelPlan, tensor: Tensor) -> str:
    """Return the type in which a value crosses a barrier: as computed, or its own if all that read it round it."""
    readers = [
        s for stages in plan.phases for s in stages if tensor in s.slice.tensors and not _makes(s, tensor)
    ]
    rounded = bool(readers) and all(_is_factor(stage, stage.slice.tensors[tensor]) for stage in readers)
    return tensor.dtype if rounded else compute_dtype(tensor.dtype)


def _makes(stage: Stage, tensor: Tensor) -> bool:
    return any(op.output is tensor for op in stage.slice.copies)


def _is_factor(stage: Stage, tensor: Tensor) -> bool:
    """Return whether a stage reads a value for matrix units alone, which multiply numbers of its type."""
    units = stage.row_mapping.matrix
    if units is None or units.dtype != tensor.dtype or tensor not in [first for first, _ in units.factors]:
        return False
    return all(op in units.sums.reduces for op in stage.graph.operators if tensor in op.inputs)


def _lives(plan: KernelPlan) -> dict[Tensor, tuple[int, int]]:
    """Return the first and the last phase in which each global tensor is live."""
    crossing = plan.crossing
    first: dict[Tensor, int] = {}
    for op, tensor in crossing.partials.items():
        first[tensor] = next(
            f for f, stages in enumerate(plan.phases) for s in stages if op in s.slice.cross_row
        )
    first |= crossing.stored
    last = dict(first)
    for f, stages in enumerate(plan.phases):
        read = {t for stage in stages for op in stage.slice.copies for t in op.inputs}
        last |= {t: f for t in first if f > first[t] and t in read}
    for op, f in crossing.scalars.items():
        later = [
            g for g, stages in enumerate(plan.phases) if any(op.output in s.slice.tensors for s in stages)
        ]
        # Resident blocks hold the result. Kernels of their own finish it again.
        last[crossing.partials[op]] = f + 1 if plan.cooperative else max([f + 1, *later])
    return {t: (first[t], last[t]) for t in first}
