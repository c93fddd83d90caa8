# SPDX-License-Identifier: Apache-2.0
"""Dominators of operators against removal: without its dominator, nothing leads from the inputs to an operator."""

from __future__ import annotations

import pytest
from tvm.relax import op as R

from tests.graph.helpers import build, graph, graphs, operator
from tvm_stitch.graph.dominators import dominator_tree
from tvm_stitch.graph.ir import Operator, StitchGraph
from tvm_stitch.testing.random_graphs import random_graph


def oracle(found: StitchGraph, op: Operator) -> set[Operator]:
    """The operators that every path from an input (or from nothing) to ``op`` goes through."""
    dominators = set()
    for removed in found.operators:
        reached: set[Operator] = set()
        for o in found.operators:
            if o is removed:
                continue
            producers = [t.producer for t in o.inputs if t.producer is not None]
            if len(producers) < len(o.inputs) or not o.inputs or any(p in reached for p in producers):
                reached.add(o)
        if op not in reached and op is not removed:
            dominators.add(removed)
    return dominators


def check(found: StitchGraph) -> None:
    tree = dominator_tree(found)
    for op in found.operators:
        chain: set[Operator] = set()
        parent = tree[op]
        while parent is not None:
            chain.add(parent)
            parent = tree[parent]
        assert chain == oracle(found, op), op


def test_softmax() -> None:
    def body(emit, x):  # type: ignore[no-untyped-def]
        y = emit(R.exp(x))
        e = emit(R.exp(emit(R.subtract(y, emit(R.max(y, -1, True))))))
        return R.divide(e, emit(R.sum(e, -1, True)))

    found = graph(build(body, ((4, 8), "float32")))
    tree = dominator_tree(found)
    shown = {op.name: p.name if p else None for op, p in tree.items()}
    assert shown[operator(found, "T_divide").name] == "compute1"
    assert shown[operator(found, "T_subtract").name] == "compute"
    assert shown["compute"] is None
    check(found)


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int) -> None:
    for found in graphs(random_graph(seed, max_elements=500).mod):
        check(found)
