# SPDX-License-Identifier: Apache-2.0
"""Dominant groups of graphs that are not mapped yet, and the dominants that say what a row is."""

from __future__ import annotations

from typing import Any

from tvm.relax import op as R

from tests.graph.helpers import build, graph
from tvm_stitch.plan.dominants import costly_broadcasts, dominant_groups, leads, placing_order, roots

F32 = "float32"


def test_reductions_and_outputs_are_placed_producers_first() -> None:
    def body(emit: Any, x: Any) -> Any:
        highest = emit(R.max(x, -1, True))
        shifted = emit(R.exp(emit(R.subtract(x, highest))))
        return [shifted, emit(R.sum(shifted, -1)), emit(R.negative(highest))]

    op_graph = graph(build(body, ((6, 20), F32)))
    placed = list(roots(op_graph))
    assert [op.is_reduce for op in placed] == [True, False, True, False]
    assert {op.output for op in placed} >= set(op_graph.outputs)
    assert placed == [op for op in op_graph.operators if op in placed]


def test_heavy_values_that_are_broadcast_along_rows_say_how_long_rows_are() -> None:
    def body(emit: Any, light: Any, heavy: Any, scale: Any, x: Any) -> Any:
        wide = emit(R.multiply(emit(R.add(light, light)), x))
        shifted = emit(R.add(emit(R.exp(heavy)), heavy))  # light itself, of something heavy
        return [R.multiply(emit(R.add(emit(R.exp(scale)), x)), emit(R.multiply(shifted, wide)))]

    op_graph = graph(build(body, ((4, 1, 1), F32), ((4, 3, 1), F32), ((5,), F32), ((4, 3, 5), F32)))
    assert [op.output.size for op in costly_broadcasts(op_graph)] == [12]
    assert [(lead.rows, lead.flat) for lead in leads(op_graph)] == [(12, False), (1, True)]


def softmax(emit: Any, x: Any) -> Any:
    scaled = emit(R.multiply(x, x))
    e = emit(R.exp(emit(R.subtract(scaled, emit(R.max(scaled, -1, True))))))
    return [R.divide(e, emit(R.sum(e, -1, True)))]


def test_local_operators_merge_candidates_and_a_reduction_dominates() -> None:
    """Both reductions and the quotients read the product element by element."""
    op_graph = graph(build(softmax, ((6, 20), F32)))
    (only,) = dominant_groups(op_graph)
    assert only.dominant is op_graph.reduces[0] and only.members == tuple(op_graph.operators)
    assert only.sub_dominants == (op_graph.reduces[1], op_graph.operators[-1])
    assert [(lead.dominant, lead.rows) for lead in leads(op_graph)] == [(op_graph.reduces[0], 6)]


def test_groups_meet_at_one_to_many_dependencies_of_candidates() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return [R.add(emit(R.exp(x)), y)]

    op_graph = graph(build(body, ((6, 1), F32), ((6, 20), F32)))
    exp, add = op_graph.operators
    assert [(g.dominant, g.members) for g in dominant_groups(op_graph)] == [(exp, (exp,)), (add, (add,))]
    assert [lead.dominant for lead in leads(op_graph)] == [exp, add]
    assert [lead.dominant for lead in leads(op_graph, [add.name])][0] is add


def test_a_preferred_candidate_dominates_its_group() -> None:
    op_graph = graph(build(softmax, ((6, 20), F32)))
    second = op_graph.reduces[1]
    (only,) = dominant_groups(op_graph, [second.name])
    assert only.dominant is second and op_graph.reduces[0] in only.sub_dominants
    assert leads(op_graph, [second.name])[0].dominant is second


def test_a_preferred_dominant_is_placed_before_the_candidates_that_it_does_not_need() -> None:
    def body(emit: Any, x: Any) -> Any:
        doubled = emit(R.add(x, x))
        return [emit(R.negative(doubled)), emit(R.sum(doubled, 1))]

    op_graph = graph(build(body, ((6, 20), F32)))
    placed = list(roots(op_graph))
    assert [op.is_reduce for op in placed] == [False, True]
    assert placing_order(op_graph) == placed
    assert placing_order(op_graph, [op_graph.reduces[0].name]) == placed[::-1]
    needing = graph(build(softmax, ((6, 20), F32)))
    assert placing_order(needing, [needing.reduces[1].name]) == list(roots(needing))


def test_without_a_choice_the_first_reduction_says_what_a_row_is() -> None:
    """The first reduction dominates its group, whatever is merged. An output that comes before it does not."""

    def body(emit: Any, x: Any) -> Any:
        doubled = emit(R.add(x, x))
        return [emit(R.exp(doubled)), emit(R.sum(doubled, 1)), emit(R.max(doubled, 1))]

    op_graph = graph(build(body, ((6, 20), F32)))
    assert [lead.dominant for lead in leads(op_graph)] == op_graph.reduces[:1]
    assert {op for g in dominant_groups(op_graph) for op in g.members} == set(op_graph.operators)


def test_outputs_that_need_no_rows_are_one_row_of_the_last() -> None:
    def body(emit: Any, x: Any) -> Any:
        doubled = emit(R.add(x, x))
        return [emit(R.exp(doubled)), emit(R.negative(doubled))]

    op_graph = graph(build(body, ((6, 20), F32)))
    (lead,) = leads(op_graph)
    assert (lead.dominant, lead.flat) == (op_graph.operators[-1], True)
    assert [g.dominant for g in dominant_groups(op_graph)] == [lead.dominant]
