# SPDX-License-Identifier: Apache-2.0
"""Candidates for dominant operators (AStitch 4.3, step 1): what stages are made from.

Reductions, outputs and costly values that are broadcast. Of these a planner gives reductions and outputs their places,
producers first: alignment in the rows of one domain, the partitioner in stages. A broadcast value follows what reads
it, but it decides what a row is where nothing is reduced. Everything else has the mapping of what it is read by.
Which candidates share a group in the end is the plan's to say (``schemes``).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.extent import Extent, same
from ..graph.ir import OpClass, Operator, Span, StitchGraph, Tensor


def roots(graph: StitchGraph) -> Iterator[Operator]:
    """The reductions and outputs of a graph, producers first."""
    outputs = {t.producer for t in graph.outputs}
    return (op for op in graph.operators if op.is_reduce or op in outputs)


def broadcast_sizes(graph: StitchGraph) -> list[Extent]:
    """The sizes of values which take a heavy operator to compute and are broadcast along rows, each once."""
    found: list[Extent] = []
    heavy_below: dict[Tensor, bool] = {}
    for op in graph.operators:
        heavy_below[op.output] = op.op_class is OpClass.HEAVY or any(
            heavy_below.get(t, False) for t in op.inputs
        )
        for a in op.accesses:
            if a.span is Span.LEADING and heavy_below.get(a.tensor, False):
                if not any(same(a.tensor.size, f) for f in found):
                    found.append(a.tensor.size)
    return found
