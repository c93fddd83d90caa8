# SPDX-License-Identifier: Apache-2.0
"""Parts of scopes move to the kernel of a convolution in front of them if that saves bytes, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.choices import CHOICES
from tests.scope.nodes import check_identified, memory, opaque, scopes
from tvm_stitch.config import StitchConfig
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.scope.estimate import KernelEstimate, in_block
from tvm_stitch.scope.identified import Identified
from tvm_stitch.scope.identify import identify
from tvm_stitch.scope.node import Node
from tvm_stitch.support.failures import Refusal


def takes(graph: StitchGraph, number: int) -> bool:
    """Return whether a graph is element-wise in one of its inputs, and of the shape of this input."""
    shape = graph.inputs[number].shape
    return all(not op.is_reduce and op.output.shape == shape for op in graph.operators)


def convolution(inputs: Sequence[str], output: str, escapes: bool = False) -> Node:
    """Return a call whose kernel takes element-wise nodes."""
    node = opaque(inputs, output, escapes=escapes)
    node.is_call, node.takes = False, takes
    return node


def found(nodes: Sequence[Node], **options: object) -> Identified:
    result = identify(nodes, StitchConfig(**options), CHOICES)
    check_identified(nodes, result)
    return result


def parts(nodes: Sequence[Node], **options: object) -> list[list[str]]:
    return [[n.name for n in e] for e in found(nodes, **options).epilogues]


def activated(*others: Node) -> list[Node]:
    """Build a convolution with a bias and an activation that is a result."""
    nodes = [convolution(["x", "w"], "c"), memory("bias", ["c", "v"], "b")]
    return [*nodes, memory("exp", ["b"], "a", escapes=True), *others]


def test_a_result_of_the_scope_is_computed_in_front_of_its_sum() -> None:
    nodes = activated(memory("sum", ["a"], "s", escapes=True))
    result = found(nodes)
    assert [[n.name for n in e] for e in result.epilogues] == [["c", "b", "a"]]
    assert scopes(result) == {frozenset("s")}
    reasons = {(b.producer, b.consumer): b.reason for b in result.boundaries}
    assert reasons["a", "s"] == "computed in the kernel of c"
    assert scopes(found(nodes, epilogues=False)) == {frozenset("bas")}


def test_a_whole_scope_stays_one() -> None:
    """A later pass lets the kernel compute it, with all of its results."""
    nodes = activated(memory("add", ["a", "b"], "d", escapes=True))
    assert parts(nodes) == [] and scopes(found(nodes)) == {frozenset("bad")}


STAYING = {
    "no result of the scope": [
        convolution(["x", "w"], "c"),
        memory("exp", ["c"], "a"),
        memory("sum", ["a"], "s", escapes=True),
    ],
    "the convolution is a result": [
        convolution(["x", "w"], "c", escapes=True),
        memory("exp", ["c"], "a", escapes=True),
        memory("sum", ["a"], "s", escapes=True),
    ],
    "the convolution is read by the rest": [
        convolution(["x", "w"], "c"),
        memory("exp", ["c"], "a", escapes=True),
        memory("sum", ["c"], "s", escapes=True),
    ],
    "a residual is read twice": [
        convolution(["x", "w"], "c"),
        memory("add", ["c", "r"], "a", escapes=True),
        memory("add", ["a", "r"], "d"),
        memory("sum", ["d"], "s", escapes=True),
    ],
    "an operand is computed in the scope": [
        convolution(["x", "w"], "c"),
        memory("sum", ["x"], "t"),
        memory("spread", ["c", "t"], "a", escapes=True),
        memory("sum", ["a"], "s", escapes=True),
    ],
}


@pytest.mark.parametrize("case", STAYING)
def test_scopes_that_stay_whole(case: str) -> None:
    nodes = STAYING[case]
    assert parts(nodes) == []
    assert len(scopes(found(nodes))) == 1


def test_a_vector_may_be_read_twice() -> None:
    nodes = activated(memory("bias", ["a", "v"], "d"), memory("sum", ["d"], "s", escapes=True))
    assert parts(nodes) == [["c", "b", "a"]]


def test_the_part_ends_where_it_pays() -> None:
    """The exponential of the result is read by the sum alone, and stays with it."""
    nodes = activated(memory("exp", ["a"], "d"), memory("sum", ["d"], "s", escapes=True))
    result = found(nodes)
    assert [[n.name for n in e] for e in result.epilogues] == [["c", "b", "a"]]
    assert scopes(result) == {frozenset("ds")}


def test_the_rest_reads_one_value_of_the_part() -> None:
    """It would read two in place of the convolution, as many bytes as before."""
    nodes = [convolution(["x", "w"], "c"), memory("bias", ["c", "v"], "b", escapes=True)]
    nodes += [memory("exp", ["b"], "a", escapes=True)]
    nodes += [memory("sum", [value], f"sum of {value}", escapes=True) for value in "ab"]
    assert parts(nodes) == [["c", "b"]]


def test_each_convolution_takes_its_own_part() -> None:
    first = activated(memory("sum", ["a"], "s", escapes=True))
    second = [convolution(["a", "w"], "k"), memory("exp", ["k"], "e", escapes=True)]
    nodes = [*first, *second, memory("sum", ["e"], "t", escapes=True)]
    assert parts(nodes) == [["c", "b", "a"], ["k", "e"]]


def test_a_kernel_decides_what_it_takes() -> None:
    nodes = activated(memory("sum", ["a"], "s", escapes=True))
    nodes[0].takes = lambda graph, _: len(graph.operators) == 0
    assert parts(nodes) == []


def test_as_many_nodes_as_an_epilogue_has() -> None:
    nodes = activated(memory("exp", ["a"], "d", escapes=True), memory("sum", ["d"], "s", escapes=True))
    for most in (2, 3):
        result = identify(nodes, StitchConfig(), replace(CHOICES, epilogue_nodes=most))
        assert [len(e) - 1 for e in result.epilogues] == [most]


def test_a_rest_without_a_plan_keeps_the_scope_whole() -> None:
    def estimate(graph: StitchGraph) -> KernelEstimate:
        if len(graph.operators) == 2 and any(op.is_reduce for op in graph.operators):
            raise Refusal("the rest")
        return in_block(graph, CHOICES)

    nodes = activated(memory("exp", ["a"], "d"), memory("sum", ["d"], "s", escapes=True))
    result = identify(nodes, StitchConfig(), CHOICES, estimate=estimate)
    assert result.epilogues == [] and scopes(result) == {frozenset("bads")}
