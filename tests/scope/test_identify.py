# SPDX-License-Identifier: Apache-2.0
"""Joining of nodes: cycles, limits, views, reasons, and time on large graphs."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from tests.choices import CHOICES
from tests.scope.nodes import check_identified, compute, memory, opaque, scopes
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import GPUS
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.scope.estimate import Estimator, KernelEstimate, estimate_kernel, in_block
from tvm_stitch.scope.identified import Identified
from tvm_stitch.scope.identify import identify
from tvm_stitch.scope.node import Node

H200 = GPUS["h200"]


def found(nodes: Sequence[Node], **options: object) -> Identified:
    result = identify(nodes, StitchConfig(**options), CHOICES)
    check_identified(nodes, result)
    return result


def test_a_chain_is_one_scope() -> None:
    nodes = [
        memory("exp", ["x"], "a"),
        memory("add", ["a", "y"], "b"),
        memory("exp", ["b"], "c", escapes=True),
    ]
    result = found(nodes)
    assert scopes(result) == {frozenset("abc")}
    (scope,) = result.scopes
    assert scope.inputs == ["x", "y"] and scope.outputs == ["c"]


def test_two_reductions_of_equal_rows_are_one_scope() -> None:
    nodes = [
        memory("sum", ["x"], "a"), memory("spread", ["x", "a"], "b"), memory("sum", ["b"], "c"),
        memory("spread", ["b", "c"], "d", escapes=True),
    ]  # fmt: skip
    assert scopes(found(nodes)) == {frozenset("abcd")}


def test_values_used_outside_are_outputs() -> None:
    nodes = [
        memory("exp", ["x"], "a"), memory("add", ["a", "a"], "b", escapes=True), memory("exp", ["b"], "c"),
        compute(["a"], "m", escapes=True), memory("exp", ["c"], "d", escapes=True),
    ]  # fmt: skip
    (scope,) = found(nodes).scopes
    assert scope.outputs == ["a", "b", "d"]


def test_a_matmul_in_the_middle_separates() -> None:
    nodes = [
        memory("exp", ["x"], "a"),
        compute(["a", "w"], "m"),
        memory("sum", ["m"], "b"),
        memory("spread", ["m", "b"], "c"),
    ]
    assert scopes(found(nodes)) == {frozenset("a"), frozenset("bc")}


def test_a_diamond_around_a_matmul_makes_no_cycle() -> None:
    nodes = [
        memory("exp", ["x"], "a"), compute(["a", "w"], "m"), memory("exp", ["a"], "b"),
        memory("add", ["m", "b"], "c", escapes=True),
    ]  # fmt: skip
    result = found(nodes, epilogues=False)
    assert scopes(result) in ({frozenset("ab"), frozenset("c")}, {frozenset("a"), frozenset("bc")})
    assert not any({"a", "c"} <= s for s in scopes(result))


def test_two_diamonds_that_cross() -> None:
    """The paths are a -> m -> d and b -> n -> c. a, c and b, d are of one kind. Joining both pairs would be a cycle."""
    nodes = [
        memory("exp", ["x"], "a"), memory("exp", ["y"], "b"), compute(["a"], "m"), compute(["b"], "n"),
        memory("add", ["n", "a"], "c"), memory("add", ["m", "b"], "d"), memory("add", ["c", "d"], "e", escapes=True),
    ]  # fmt: skip
    result = found(nodes, epilogues=False)
    assert sum(len(s.nodes) for s in result.scopes) == 5


def test_the_reason_for_a_boundary() -> None:
    nodes = [
        memory("exp", ["x"], "a"),
        compute(["a"], "m"),
        memory("exp", ["a"], "b"),
        memory("add", ["b", "m"], "c"),
    ]
    reasons = {(b.producer, b.consumer): b.reason for b in found(nodes, epilogues=False).boundaries}
    assert reasons["m", "c"] == "compute-intensive"
    assert "cycle" in reasons["b", "c"]


def test_reductions_of_other_rows_separate_with_a_reason() -> None:
    nodes = [memory("sum", ["x"], "a"), memory("spread", ["x", "a"], "b"), memory("columns", ["b"], "c")]
    result = found(nodes, horizontal_fusion=False)
    assert scopes(result) == {frozenset("ab"), frozenset("c")}
    assert "8 and 64 rows" in {(b.producer, b.consumer): b.reason for b in result.boundaries}["b", "c"]


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_the_limit_of_operators(limit: int) -> None:
    nodes = [memory("exp", [f"v{i}"], f"v{i + 1}") for i in range(25)]
    result = found(nodes, max_operators=limit)
    assert max(len(s.graph.operators) for s in result.scopes) == limit
    assert len(result.scopes) <= -(-25 // limit) + 1
    assert any("max_operators" in b.reason for b in result.boundaries)


@pytest.mark.parametrize("limit", [4, 8])
def test_the_limit_of_arguments(limit: int) -> None:
    nodes = [memory("add", [f"v{i}", f"w{i}"], f"v{i + 1}") for i in range(25)]
    result = found(nodes, max_arguments=limit)
    assert max(len(s.inputs) + len(s.outputs) for s in result.scopes) == limit
    assert any("arguments exceed the limit" in b.reason for b in result.boundaries)


def test_views_at_a_border_stay_views() -> None:
    nodes = [
        memory("exp", ["x"], "a", (8, 64)), memory("view", ["a"], "v", (8, 64)), compute(["v"], "m"),
        memory("view", ["m"], "u", (8, 64)), memory("exp", ["u"], "b", (64, 8), escapes=True),
    ]  # fmt: skip
    result = found(nodes, epilogues=False)
    assert not any("v" in s for s in scopes(result))
    assert frozenset("a") in scopes(result)


def test_a_view_between_operators_is_inside() -> None:
    nodes = [
        memory("exp", ["x"], "a", (8, 64)),
        memory("view", ["a"], "v", (8, 64)),
        memory("exp", ["v"], "b", (64, 8)),
    ]
    assert scopes(found(nodes)) == {frozenset("avb")}


def test_a_view_alone_is_no_kernel() -> None:
    nodes = [compute(["x"], "m"), memory("view", ["m"], "v", (8, 64)), compute(["v"], "n")]
    result = found(nodes)
    assert scopes(result) == set()


def test_results_nobody_uses_are_written() -> None:
    nodes = [memory("exp", ["x"], "a"), memory("exp", ["a"], "b", escapes=True), memory("exp", ["a"], "c")]
    outputs = {v for s in found(nodes).scopes for v in s.outputs}
    assert {"b", "c"} <= outputs


BEHIND = [
    memory("exp", ["x"], "a"), compute(["a"], "m"), memory("widen", ["a"], "d"), memory("widen", ["m"], "w"),
    memory("add64", ["d", "w"], "c", escapes=True),
]  # fmt: skip
"""A cast that is read behind a product."""


def test_a_cast_that_is_read_behind_a_product_is_made_there() -> None:
    """The value between the kernels has the narrower type."""
    result = found(BEHIND, epilogues=False)
    assert scopes(result) == {frozenset("a"), frozenset("dwc")}
    assert [scope.outputs for scope in result.scopes] == [["a"], ["c"]]


@pytest.mark.parametrize("reader", ["opaque", "product", "two", "none"])
def test_a_cast_that_no_one_scope_reads_stays_with_its_producer(reader: str) -> None:
    nodes = [memory("exp", ["x"], "a"), memory("widen", ["a"], "d", escapes=reader == "none")]
    if reader == "opaque":
        nodes.append(opaque(["d"], "o", escapes=True))
    elif reader == "product":
        nodes.append(compute(["d"], "o", escapes=True))
    elif reader == "two":
        nodes += [compute(["a"], "m"), memory("widen", ["m"], "w")]
        nodes += [memory("add64", ["d", "w"], name, escapes=True) for name in "cb"]
    result = found(nodes, epilogues=False)
    assert frozenset("ad") in scopes(result)


def test_a_cast_that_is_a_result_stays_with_its_producer() -> None:
    """It is written in the wide type anyway."""
    cast = memory("widen", ["a"], "d", escapes=True)
    result = found([*BEHIND[:2], cast, *BEHIND[3:]], epilogues=False)
    assert scopes(result) == {frozenset("ad"), frozenset("wc")}


def test_casts_between_operators_of_one_scope() -> None:
    """Also where one cast reads another."""
    nodes = [
        memory("narrow16", ["x"], "a"), memory("widen16", ["a"], "d"), memory("widen", ["d"], "e"),
        memory("narrow", ["e"], "f", escapes=True),
    ]  # fmt: skip
    result = found(nodes)
    assert scopes(result) == {frozenset("adef")} and not result.boundaries


def test_two_casts_in_a_row_are_read_behind_a_product() -> None:
    nodes = [
        memory("narrow16", ["x"], "a"), compute(["a"], "m"), memory("widen16", ["a"], "d"), memory("widen", ["d"], "e"),
        memory("widen", ["m"], "w"), memory("add64", ["e", "w"], "c", escapes=True),
    ]  # fmt: skip
    assert scopes(found(nodes, epilogues=False)) == {frozenset("a"), frozenset("dewc")}


def test_a_cast_that_its_reader_cannot_take_is_joined_with_its_producer() -> None:
    nodes = [
        memory("add64", ["u", "v"], "b"), memory("add64", ["b", "u"], "c"), memory("exp", ["x"], "a"),
        memory("widen", ["a"], "d"), memory("add64", ["c", "d"], "e", escapes=True),
    ]  # fmt: skip
    result = found(nodes, max_operators=3)
    assert scopes(result) == {frozenset("bce"), frozenset("ad")}
    assert [(b.producer, b.consumer) for b in result.boundaries] == [("d", "e")]


@pytest.mark.parametrize(
    ("kind", "widens"), [("widen", True), ("widen16", True), ("narrow", False), ("exp", False)]
)
def test_what_widens(kind: str, widens: bool) -> None:
    assert memory(kind, ["x"], "a").widens is widens


def mixture(count: int) -> list[Node]:
    """Chains, diamonds, reductions and matmuls: about ``count`` nodes in blocks of ten."""
    nodes: list[Node] = []
    last = "x"
    for k in range(count // 10):

        def name(i: int, k: int = k) -> str:
            return f"b{k}_{i}"

        nodes += [
            memory("exp", [last], name(0)), memory("exp", [name(0)], name(1)), memory("exp", [name(0)], name(2)),
            memory("add", [name(1), name(2)], name(3)), memory("sum", [name(3)], name(4)),
            memory("spread", [name(3), name(4)], name(5)), compute([name(5)], name(6)) if k % 3 == 0 else memory(
                "exp", [name(5)], name(6)),
            memory("add", [name(6), name(3)], name(7)), memory("exp", [name(7)], name(8)),
            memory("add", [name(8), name(0)], name(9)),
        ]  # fmt: skip
        last = name(9)
    return nodes


def on_a_row_domain(graph: StitchGraph) -> KernelEstimate:
    return in_block(graph, CHOICES)


class Counting:
    """Estimates as ``identify`` does by default, and counts the graphs and their operators."""

    def __init__(self, estimate: Estimator = on_a_row_domain) -> None:
        self.estimate, self.graphs, self.operators = estimate, 0, 0

    def __call__(self, graph: StitchGraph) -> KernelEstimate:
        self.graphs += 1
        self.operators += len(graph.operators)
        return self.estimate(graph)


def test_large_graphs_are_estimated_in_proportion_to_their_size() -> None:
    asked = []
    for count in (1250, 2500, 5000):
        nodes = mixture(count)
        counting = Counting()
        result = identify(nodes, StitchConfig(), CHOICES, estimate=counting)
        limit = StitchConfig().max_operators
        assert max(len(s.graph.operators) for s in result.scopes) <= limit
        assert len(result.scopes) < count / 10
        asked.append((counting.graphs / count, counting.operators / count))
    # One appraisal a merge would be about one a node, of scopes half as large as the limit.
    assert all(graphs < 0.25 and operators < 8 for graphs, operators in asked), asked
    assert asked[2][1] < 1.2 * asked[0][1], asked


def on_a_gpu(graph: StitchGraph) -> KernelEstimate:
    return estimate_kernel(graph, H200, StitchConfig())


def grid_chain(count: int) -> list[Node]:
    """Blocks of a softmax-like part, sums of columns of it, and a matmul: as layers going backwards have them."""
    nodes: list[Node] = []
    last = "x"
    for k in range(count // 8):

        def name(i: int, k: int = k) -> str:
            return f"b{k}_{i}"

        nodes += [
            memory("exp", [last], name(0)), memory("sum", [name(0)], name(1)),
            memory("spread", [name(0), name(1)], name(2)), memory("columns", [name(2)], name(3), escapes=True),
            memory("add", [name(2), name(0)], name(4)), memory("columns", [name(4)], name(5), escapes=True),
            memory("add", [name(4), name(2)], name(6)), compute([name(6)], name(7)),
        ]  # fmt: skip
        last = name(7)
    return nodes


def test_grid_wide_scopes_are_estimated_in_proportion_to_their_number() -> None:
    asked = []
    for count in (80, 320):
        counting = Counting(on_a_gpu)
        result = identify(grid_chain(count), StitchConfig(), CHOICES, estimate=counting)
        asked.append((counting.graphs / count, counting.operators / count))
        assert len(result.scopes) == count // 8
    assert asked[1][0] < 1 and asked[1][1] < 1.2 * asked[0][1], asked


def test_grid_wide_scopes_that_grow_are_not_estimated_at_every_step() -> None:
    """One scope of 120 operators: a look at each merge would be at 7,000 operators."""
    nodes = [memory("columns", ["x"], "s", (600, 40)), memory("exp", ["x"], "v0", (600, 40))]
    nodes += [memory("add", [f"v{i}", f"v{max(0, i - 3)}"], f"v{i + 1}", (600, 40)) for i in range(118)]
    nodes.append(memory("columns", ["v118"], "t", (600, 40), escapes=True))
    counting = Counting(on_a_gpu)
    (scope,) = identify(nodes, StitchConfig(), CHOICES, estimate=counting).scopes
    assert len(scope.nodes) == 121
    assert counting.operators < 1500, (counting.graphs, counting.operators)


@pytest.mark.parametrize("shape", ["chain", "wide", "independent"])
def test_large_graphs_of_one_kind(shape: str) -> None:
    count = 1500
    if shape == "chain":
        nodes = [memory("exp", [f"v{i}"], f"v{i + 1}") for i in range(count)]
    elif shape == "wide":
        nodes = [memory("exp", ["x"], f"v{i}", escapes=True) for i in range(count)]
    else:
        nodes = [memory("exp", [f"x{i}"], f"v{i}", escapes=True) for i in range(count)]
    start = time.process_time()
    result = identify(nodes, StitchConfig(), CHOICES)
    assert time.process_time() - start < 30
    config = StitchConfig()
    assert max(len(s.graph.operators) for s in result.scopes) <= config.max_operators
    assert max(len(s.inputs) + len(s.outputs) for s in result.scopes) <= config.max_arguments
