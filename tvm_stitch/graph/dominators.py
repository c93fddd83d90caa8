# SPDX-License-Identifier: Apache-2.0
"""The dominator tree of a graph's operators, for buffer reuse and for printing."""

from __future__ import annotations

from .ir import Operator, StitchGraph


def dominator_tree(graph: StitchGraph) -> dict[Operator, Operator | None]:
    """Each operator's immediate dominator: the last operator on every path to it from the inputs (None: no such).

    A single pass in topological order suffices on an acyclic graph: the immediate dominator is the nearest common
    ancestor, in the tree built so far, of all producers. An operator that reads an input directly has none.
    """
    own = set(graph.operators)
    parent: dict[Operator, Operator | None] = {}
    depth: dict[Operator | None, int] = {None: 0}

    def meet(a: Operator | None, b: Operator | None) -> Operator | None:
        while a is not b:
            if depth[a] >= depth[b]:
                a = parent[a] if a is not None else None
            else:
                b = parent[b] if b is not None else None
        return a

    for op in graph.operators:
        producers = [t.producer if t.producer in own else None for t in op.inputs]
        found: Operator | None = producers[0] if producers else None
        for p in producers[1:]:
            found = meet(found, p)
        parent[op] = found
        depth[op] = depth[found] + 1
    return parent
