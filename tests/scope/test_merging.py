# SPDX-License-Identifier: Apache-2.0
"""Merges that lose are refused with the reason. Batches are undone whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.choices import CHOICES
from tests.graph.helpers import H200
from tests.scope.nodes import memory
from tvm_stitch.config import StitchConfig
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.scope.estimate import KernelEstimate, estimate_kernel, in_block
from tvm_stitch.scope.identified import Identified
from tvm_stitch.scope.identify import identify
from tvm_stitch.scope.merging import Merger, loss, turns_uncoalesced
from tvm_stitch.scope.node import Node
from tvm_stitch.scope.quotient import Quotient

LARGE = (65536, 1024)


def on_a_gpu(graph: StitchGraph) -> KernelEstimate:
    return estimate_kernel(graph, H200, StitchConfig())


def found(nodes: Sequence[Node]) -> Identified:
    return identify(nodes, StitchConfig(), CHOICES, estimate=on_a_gpu)


def scopes(nodes: Sequence[Node]) -> set[frozenset[str]]:
    return {frozenset(n.name for n in s.nodes) for s in found(nodes).scopes}


def merger(nodes: Sequence[Node]) -> Merger:
    for i, n in enumerate(nodes):
        n.index = i
    made = Merger(nodes, Quotient(nodes), StitchConfig(), CHOICES, on_a_gpu)
    assert not any(made.alone(i) for i in range(len(nodes)))
    return made


def rows(shape: tuple[int, int]) -> list[Node]:
    return [memory("sum", ["x"], "a", shape), memory("spread", ["x", "a"], "b", shape, escapes=True)]


def test_reading_a_large_tensor_once_pays_for_a_grid() -> None:
    assert scopes([*rows(LARGE), memory("columns", ["b"], "c", LARGE, escapes=True)]) == {frozenset("abc")}


def test_a_launch_saved_pays_for_a_barrier() -> None:
    small = (512, 64)
    assert scopes([*rows(small), memory("columns", ["b"], "c", small, escapes=True)]) == {frozenset("abc")}


def follower(shape: tuple[int, int]) -> list[Node]:
    """Build a kernel over large rows, and little work on the rows' sums that its row domain does not serve."""
    vector = (shape[0], 1)
    return [*rows(shape), memory("columns", ["a"], "c", vector, escapes=True)]


def test_little_work_does_not_slow_a_large_kernel_down() -> None:
    result = found(follower(LARGE))
    assert {frozenset(n.name for n in s.nodes) for s in result.scopes} == {frozenset("ab"), frozenset("c")}
    (boundary,) = result.boundaries
    assert (boundary.producer, boundary.consumer) == ("a", "c") and "us, apart they take" in boundary.reason
    assert scopes(follower((2048, 64))) == {frozenset("abc")}


def test_what_lost_alone_may_win_when_the_rest_is_there() -> None:
    """c loses against the rows alone. d makes them grid-wide anyway, and then c joins too."""
    nodes = [*follower(LARGE), memory("columns", ["b"], "d", LARGE, escapes=True)]
    result = found(nodes)
    assert {frozenset(n.name for n in s.nodes) for s in result.scopes} == {frozenset("abcd")}
    assert result.boundaries == []


def test_one_row_domain_goes_on_before_a_grid_is_made() -> None:
    """d joins the rows it continues (b), whichever of its producers comes first."""
    tall = (65536, 1)
    nodes = [
        memory("columns", ["y"], "s", tall),
        *rows(LARGE),
        memory("exp", ["b"], "d", LARGE, escapes=True),
    ]
    assert frozenset("abd") in scopes(nodes)


def test_loss_is_told_only_where_times_are_known() -> None:
    grid, small = KernelEstimate(True, 9e-6, 5e-6), KernelEstimate(False, 3e-6, 1e-6)
    assert "9.0 us, apart they take 6.0 us" in loss(grid, [small, small], CHOICES)
    assert loss(grid, [small, small, small, small], CHOICES) == ""
    assert (
        loss(grid, [small, KernelEstimate()], CHOICES) == ""
        and loss(KernelEstimate(False, 9e-6), [small, small], CHOICES) == ""
    )


def test_rows_are_weighed_where_they_lie_across_memory() -> None:
    small = KernelEstimate(False, 3e-6, 1e-6)
    across = KernelEstimate(False, 9e-6, 7e-6, uncoalesced=True)
    assert loss(across, [small, small], CHOICES).startswith(
        "one kernel, which reads or writes across memory, would take 9.0 us"
    )
    assert loss(across, [small, small, small, small], CHOICES) == ""
    assert turns_uncoalesced(across, [small, small]) and not turns_uncoalesced(across, [small, across])
    assert not turns_uncoalesced(small, [small, small])


def test_a_batch_is_undone_whole() -> None:
    made = merger(follower(LARGE))
    worth = dict(made.worth)
    before = made.quotient.snapshot()
    made.quotient.merge(made.quotient.merge(0, 1), 2)
    assert not made.settle(before, {1, 2})
    assert made.quotient.members == {0: [0], 1: [1], 2: [2]} and made.worth == worth
    assert made.merge_all([0, 1]) and set(made.worth) == {0, 2}
    assert not made.merge_all([0, 2])
    assert made.quotient.members == {0: [0, 1], 2: [2]} and set(made.worth) == {0, 2}


def test_a_large_scope_that_is_refused_again_and_again_is_not_asked_about_any_more() -> None:
    """A scope has more nodes than CHOICES.full_nodes. Its rows' sums have many readers that have no plan next to it."""
    nodes = [memory("exp", ["x"], "v0"), memory("sum", ["v0"], "t", escapes=True)]
    nodes += [memory("exp", [f"v{i}"], f"v{i + 1}") for i in range(CHOICES.full_nodes)]
    nodes += [memory("columns", [f"v{i}"], f"c{i}", escapes=True) for i in range(60)]
    graphs = []

    def on_row_domains(graph: StitchGraph) -> KernelEstimate:
        graphs.append(graph)
        return in_block(graph, CHOICES)

    result = identify(nodes, StitchConfig(horizontal_fusion=False), CHOICES, estimate=on_row_domains)
    assert [b.reason for b in result.boundaries] == [result.boundaries[0].reason] * 60
    assert len([g for g in graphs if len(g.operators) > CHOICES.full_nodes]) < 5 * CHOICES.full_refusals
    assert max(len(s.nodes) for s in result.scopes) == CHOICES.full_nodes + 2


def test_calls_of_one_function_are_estimated_once() -> None:
    made = merger([memory("exp", [f"x{i}"], f"v{i}") for i in range(20)])
    assert made.asked == 1 and len(made.worth) == 20


def test_a_batch_that_exceeds_a_limit_midway_is_undone_whole() -> None:
    nodes = [memory("exp", ["x"], f"v{i}", escapes=True) for i in range(3)]
    for i, n in enumerate(nodes):
        n.index = i
    made = Merger(nodes, Quotient(nodes), StitchConfig(max_operators=2), CHOICES, on_a_gpu)
    assert not any(made.alone(i) for i in range(3))
    assert not made.merge_all([0, 1, 2])
    assert made.quotient.members == {0: [0], 1: [1], 2: [2]} and set(made.worth) == {0, 1, 2}
    assert made.merge_all([0, 1])


def test_a_fault_of_ours_is_no_boundary() -> None:
    """A failure of TVM costs a merge. A fault of this package is raised, and no reason of a report."""

    def failing(graph: StitchGraph) -> KernelEstimate:
        if len(graph.operators) > 1:
            return in_block(None, CHOICES)  # type: ignore[arg-type]
        return in_block(graph, CHOICES)

    nodes = [memory("exp", ["x"], "a"), memory("exp", ["a"], "b", escapes=True)]
    with pytest.raises(AttributeError):
        identify(nodes, StitchConfig(), CHOICES, estimate=failing)

    def refused_by_tvm(graph: StitchGraph) -> KernelEstimate:
        if len(graph.operators) > 1:
            raise RuntimeError("an analysis of TVM's")
        return in_block(graph, CHOICES)

    (boundary,) = identify(nodes, StitchConfig(), CHOICES, estimate=refused_by_tvm).boundaries
    assert "an analysis of TVM's" in boundary.reason
