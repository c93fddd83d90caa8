# SPDX-License-Identifier: Apache-2.0
"""Row domains: which graphs have one, where everything is evaluated, and the reasons where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tvm import relax
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, check_emulated, draw, graph, graphs, legalize, operator, symbol
from tvm_stitch.graph.extent import same
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.plan.iteration.alignment import Misaligned, OneByOne, align
from tvm_stitch.plan.iteration.domain import ONE, ROW, At, Domain
from tvm_stitch.relax.stitch.dataflow import GraphReader, view_block
from tvm_stitch.scope.compose import compose
from tvm_stitch.testing.workloads.cases import cases

F32 = "float32"
SYMBOL = symbol()
X = ((6, 20), F32)


def composed(body: Any, *specs: Any) -> StitchGraph:
    """Return all operators of a module as one graph, even if a scope does not take them all."""
    mod = legalize(build(body, *specs))
    (block,) = mod["main"].body.blocks
    view = view_block(block, GraphReader(mod))
    made = [n for n in view.nodes if n.graph is not None]
    outputs = [v for n in made for v in n.outputs if n.escapes or not any(v in m.inputs for m in made)]
    return compose(made, outputs)


def test_rows_are_those_of_the_reductions() -> None:
    op_graph = graph(build(lambda emit, x: R.subtract(x, emit(R.max(x, -1, True))), X))
    alignment = align(op_graph, CHOICES)
    reduce, output = operator(op_graph, "x0"), operator(op_graph, "T_subtract")
    assert alignment.domain.rows == 6 and not alignment.domain.flat and alignment.row_point == ROW
    full = alignment.domain.full(20)
    assert alignment.roots == [(reduce, full), (output, full)]
    assert alignment.reads[(output, full)] == [full, ROW]
    assert alignment.level[(output, full)] == 1 and alignment.level[(reduce, ROW)] == 1


def test_a_full_reduction_has_one_row() -> None:
    alignment = align(graph(build(lambda emit, x: R.subtract(x, emit(R.max(x))), X)), CHOICES)
    assert alignment.domain.rows == 1 and alignment.row_point == ONE


def test_without_reductions_the_domain_is_flat() -> None:
    alignment = align(graph(build(lambda emit, x: R.exp(emit(R.add(x, x))), X)), CHOICES)
    assert alignment.domain.flat and [p.columns for _, p in alignment.roots] == [120]


def test_a_heavy_value_that_is_broadcast_makes_rows() -> None:
    alignment = align(graph(build(lambda emit, x, y: R.add(emit(R.exp(x)), y), ((6, 1), F32), X)), CHOICES)
    assert alignment.domain.rows == 6 and not alignment.domain.flat


def test_symbolic_rows() -> None:
    n = symbol()
    alignment = align(
        graph(build(lambda emit, x: R.subtract(x, emit(R.max(x, -1, True))), ((n, 20), F32))), CHOICES
    )
    assert not isinstance(alignment.domain.rows, int) and [p.columns for _, p in alignment.roots] == [20, 20]


MISALIGNED: dict[str, tuple[Any, Sequence[Any], str]] = {
    "rows of two sizes": (
        lambda emit, x: [R.add(emit(R.sum(x, 0, True)), emit(R.sum(x, 1, True)))], [X], "have 20 and 6 rows",
    ),
    "a reduction of reductions": (
        lambda emit, x: [R.sum(emit(R.subtract(x, emit(R.max(x, 1, True)))), 0)], [X], "have 6 and 20 rows",
    ),
    "the reduction of another row": (
        lambda emit, x: [R.subtract(x, emit(R.flip(emit(R.max(x, 1, True)), 0)))], [X], "outside its own row",
    ),
    "a transposed reduction": (
        lambda emit, x: [R.add(x, emit(R.permute_dims(emit(R.max(x, 1, True)))))], [((8, 8), F32)], "its own row",
    ),
    "a gather of other rows": (
        lambda emit, x, i: [R.take(emit(R.nn.softmax(x)), i, 0)], [X, ((6,), "int64")], "outside its own row",
    ),
    "labels that are reduced": (
        lambda emit, x, i: [
            R.gather_elements(emit(R.exp(x)), emit(R.max(i, 1, True)), 1), R.sum(x, 1)
        ],
        [X, ((6, 4), "int64")], "gathers at indices that",
    ),
    "no elements": (lambda emit, x: [R.exp(x)], [((0, 3), F32)], "has no elements"),
    "outputs without a common row": (
        lambda emit, x, y: [R.exp(x), R.exp(y)], [X, ((7, 3), F32)], "without a common row",
    ),
    "outputs of symbolic sizes": (
        lambda emit, x, y: [R.exp(x), R.exp(y)], [((SYMBOL, 4), F32), ((SYMBOL, 2), F32)],
        r"outputs of n \* 4 and n \* 2 elements without",
    ),
    "rows that do not divide": (
        lambda emit, x: [emit(R.max(x, 1)), R.exp(emit(R.strided_slice(x, [0], [0], [5])))], [X], "does not divide",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISALIGNED)
def test_reasons(name: str) -> None:
    body, specs, reason = MISALIGNED[name]
    with pytest.raises(Misaligned, match=reason):
        align(composed(body, *specs), CHOICES)


def test_sums_of_rows_and_of_columns_share_the_rows_of_a_square() -> None:
    """Row i sums row i and column i."""
    mod = build(lambda emit, x: R.add(emit(R.sum(x, 0)), emit(R.sum(x, 1))), ((33, 33), F32))
    assert align(graph(mod), CHOICES).domain.rows == 33
    check_emulated(mod, draw([((33, 33), F32)]))


def test_heavy_values_are_not_computed_for_every_row_without_end() -> None:
    """A bias that costs an exponential each would be computed by every row: a few of them may."""

    def body(count: int) -> Any:
        def make(emit: Any, x: Any, b: Any) -> Any:
            for _ in range(count):
                b = emit(R.exp(b))
            y = emit(R.add(x, b))
            return [R.subtract(y, emit(R.max(y, -1, True)))]

        return make

    align(composed(body(CHOICES.recomputed_operators), X, ((20,), F32)), CHOICES)
    with pytest.raises(Misaligned, match="computed again for every row"):
        align(composed(body(CHOICES.recomputed_operators + 1), X, ((20,), F32)), CHOICES)


def test_heavy_values_of_few_elements_are_placed_one_by_one_too() -> None:
    """A bias that costs an exponential each, in a stage of a grid-wide kernel: it is read once for each element."""
    op_graph = composed(lambda emit, x, b: R.add(x, emit(R.exp(b))), ((1000, 20), F32), ((20,), F32))
    (root,) = [op for op in op_graph.operators if op.output in op_graph.outputs]
    OneByOne(Domain(1, flat=True), CHOICES).place(root, op_graph.operators)


def test_reads_at_ever_new_places_end() -> None:
    """Sums of shifted values double the places at each level: declined soon, not after 2**30 visits."""

    def body(emit: Any, x: Any) -> Any:
        for _ in range(30):
            x = emit(
                R.add(
                    x, emit(R.concat([emit(R.strided_slice(x, [0], [1], [64])), relax.const([0.0], F32)], 0))
                )
            )
        return [x]

    try:
        align(composed(body, ((64,), F32)), CHOICES)
    except Misaligned as err:
        assert "too many different points" in str(err) or "operations below a condition" in str(err)


def test_outputs_along_another_order_than_their_own() -> None:
    """softmax over an axis that is not the last: the output is walked as the reduction walks its input."""

    def body(emit: Any, x: Any) -> Any:
        e = emit(R.exp(x))
        return [R.divide(e, emit(R.sum(e, 1, True)))]

    alignment = align(graph(build(body, ((4, 6, 5), F32))), CHOICES)
    assert alignment.domain.rows == 20
    (place,) = {p for op, p in alignment.roots if not op.is_reduce}
    assert place.at is At.INDEX and place.columns == 6


@pytest.mark.parametrize("case", cases("test"), ids=lambda case: case.name)
def test_every_read_of_a_reduction_is_in_its_row(case: Any) -> None:
    for op_graph in graphs(case.build()):
        alignment = align(op_graph, CHOICES)
        own = set(op_graph.operators)
        for key, reads in alignment.reads.items():
            assert len(reads) == len(key[0].accesses)
            for access, point in zip(key[0].accesses, reads):
                producer = access.tensor.producer
                if producer in own and producer.is_reduce:
                    assert point == alignment.row_point
        for op, point in alignment.roots:
            size = alignment.domain.rows if point.columns == 0 else None
            assert size is None or same(op.output.size, size)
        placed = {op for op, _ in alignment.roots}
        assert {t.producer for t in op_graph.outputs} | set(op_graph.reduces) == placed


def test_an_output_is_placed_where_a_reduction_evaluates_it() -> None:
    """A sum over all but the innermost axis of what is a result, too: each element is computed once, not twice."""

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.multiply(x, x))
        return [y, emit(R.sum(y, [1, 2], keepdims=True))]

    alignment = align(composed(body, ((1, 5, 7, 16), F32)), CHOICES)
    (output, place), (_, walked) = sorted(alignment.roots, key=lambda root: root[0].is_reduce)
    (read,) = {point for key, points in alignment.reads.items() if key[0].is_reduce for point in points}
    assert not output.is_reduce and walked.columns == 35 and place == read
