# SPDX-License-Identifier: Apache-2.0
"""Graphs of several nodes: wiring, inputs in order, outputs, and the nodes' own graphs left alone."""

from __future__ import annotations

from dataclasses import replace

from stitch_testing.validate import validate
from tests.scope.nodes import memory
from tvm_stitch.scope.compose import compose, wiring
from tvm_stitch.scope.node import Node


def test_values_are_wired() -> None:
    nodes = [memory("exp", ["x"], "a"), memory("sum", ["a"], "b"), memory("spread", ["a", "b"], "c")]
    joint = compose(nodes, {"c"}, "softmax")
    validate(joint)
    assert joint.name == "softmax" and len(joint.inputs) == 1 and len(joint.outputs) == 1
    exp, total, spread = joint.operators
    assert exp.output.consumers == [total, spread] and total.output.producer is total
    assert [t.producer for t in spread.inputs] == [exp, total]


def test_inputs_come_in_order_and_once() -> None:
    nodes = [memory("add", ["y", "x"], "a"), memory("add", ["a", "y"], "b"), memory("add", ["z", "b"], "c")]
    joint = compose(nodes, {"c"})
    assert len(joint.inputs) == 3
    add, again, last = joint.operators
    assert (
        add.inputs == joint.inputs[:2]
        and again.inputs[1] is joint.inputs[0]
        and last.inputs[0] is joint.inputs[2]
    )


def test_one_value_as_both_operands() -> None:
    joint = compose([memory("add", ["x", "x"], "a")], {"a"})
    validate(joint)
    assert len(joint.inputs) == 1 and len(joint.operators[0].accesses) == 2


def test_outputs_are_those_asked_for_in_the_order_of_nodes() -> None:
    nodes = [memory("exp", ["x"], "a"), memory("exp", ["a"], "b"), memory("exp", ["b"], "c")]
    joint = compose(nodes, {"c", "a"})
    assert [t.producer for t in joint.outputs] == [joint.operators[0], joint.operators[2]]


def test_the_nodes_graphs_are_left_alone() -> None:
    """The same function called twice has one graph: composing must not wire its tensors."""
    nodes = [memory("exp", ["x"], "a"), memory("exp", ["a"], "b")]
    assert nodes[0].graph is nodes[1].graph
    before = [(t, list(t.consumers), t.producer) for t in nodes[0].graph.tensors()]
    compose(nodes, {"b"})
    assert before == [(t, t.consumers, t.producer) for t in nodes[0].graph.tensors()]


def layer(x: str, prefix: str, kinds: tuple[Node, Node]) -> list[Node]:
    """Return an exponential and its product with its operand, of the graphs of some nodes."""
    exp, add = kinds
    names = [f"{prefix}a", f"{prefix}b"]
    return [
        replace(exp, name=names[0], inputs=[x], outputs=[names[0]]),
        replace(add, name=names[1], inputs=[names[0], x], outputs=[names[1]]),
    ]


def test_wiring_tells_whether_graphs_are_equal() -> None:
    kinds = memory("exp", ["x"], "a"), memory("add", ["x", "y"], "a")
    nodes = layer("x", "p", kinds)
    known = wiring(nodes, {"pb"})
    assert wiring(layer("y", "q", kinds), {"qb"}) == known and hash(known) == hash(wiring(nodes, {"pb"}))
    swapped = [nodes[0], replace(nodes[1], inputs=["x", "pa"])]
    outside = [nodes[0], replace(nodes[1], inputs=["pa", "z"])]
    other = layer("x", "p", (memory("exp", ["x"], "a", (4, 64)), kinds[1]))
    last = [(nodes, {"pa", "pb"}), (nodes[:1], {"pa"})]
    different = [*last, *((each, {"pb"}) for each in (swapped, outside, other))]
    assert len({known, *(wiring(each, outputs) for each, outputs in different)}) == 6
