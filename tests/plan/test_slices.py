# SPDX-License-Identifier: Apache-2.0
"""Slices of a graph between global values, and reductions in two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, graph
from tvm_stitch.graph.ir import Operator, StitchGraph
from tvm_stitch.plan.iteration.alignment import Misaligned
from tvm_stitch.plan.iteration.domain import Domain
from tvm_stitch.plan.slices import (
    Cut,
    aligned_slice,
    final_reduce,
    partial_tensor,
    slice_graph,
    slice_operators,
)

F32 = "float32"


def softmax() -> StitchGraph:
    def body(emit: Any, x: Any) -> Any:
        e = emit(R.exp(emit(R.subtract(x, emit(R.max(x, -1, True))))))
        return [R.divide(e, emit(R.sum(e, -1, True)))]

    return graph(build(body, ((6, 20), F32)))


def cut_of(op_graph: StitchGraph) -> Cut:
    return Cut({op.output: op for op in op_graph.operators})


def names(ops: Sequence[Operator]) -> list[str]:
    return [op.name for op in ops]


def test_a_slice_has_all_that_its_roots_need_in_order() -> None:
    found = softmax()
    ops = slice_operators(cut_of(found), [found.operators[-1]], 0)
    assert ops == found.operators
    first_sum = slice_operators(cut_of(found), [found.reduces[0]], 0)
    assert first_sum == [found.reduces[0]]


def test_a_slice_ends_at_values_that_are_ready() -> None:
    found = softmax()
    most, _ = found.reduces
    cut = cut_of(found)
    cut.ready[most.output] = 1
    last = found.operators[-1]
    assert most in slice_operators(cut, [last], 0)  # not ready: it has to be computed
    assert most not in slice_operators(cut, [last], 1)
    sliced, copies, tensors = slice_graph(cut, [last], [last], 1, "phase1")
    assert most not in copies and tensors[most.output] in sliced.inputs
    assert [t.name for t in sliced.outputs] == [last.output.name]


def test_copies_leave_the_graph_as_it_was() -> None:
    found = softmax()
    before, consumers = str(found), {t: list(t.consumers) for t in found.tensors()}
    last = found.operators[-1]
    sliced, copies, tensors = slice_graph(cut_of(found), [last], [last], 0, "phase0")
    assert str(found) == before and {t: list(t.consumers) for t in found.tensors()} == consumers
    assert set(copies) == set(found.operators) and not set(copies.values()) & set(found.operators)
    for op, copy in copies.items():
        assert copy.output is tensors[op.output] and copy.output.producer is copy
        assert copy.inputs == [tensors[t] for t in op.inputs]
        assert all(copy in t.consumers for t in copy.inputs)
    assert {op.output for op in sliced.operators} == {copy.output for copy in copies.values()}


def test_a_part_is_aligned_with_all_of_its_roots_or_not_made() -> None:
    found = softmax()
    most, total = found.reduces
    part = aligned_slice(cut_of(found), CHOICES, 0, Domain(6), [most], stored=[most])
    assert names(part.graph.operators)[-1] == most.name and names(part.roots) == [most.name]
    assert [t.producer for t in part.graph.outputs] == [part.copies[most]] and part.stored == {most}
    with pytest.raises(Misaligned):
        aligned_slice(cut_of(found), CHOICES, 0, Domain(6), [most, total], [total], [most])


def test_a_reduction_in_two_steps() -> None:
    """Of <40, 24> over the first axis: 24 results of 7 blocks each, put together as the reduction puts elements."""
    op_graph = graph(build(lambda emit, x: R.max(x, 0), ((40, 24), F32)))
    (op,) = op_graph.reduces
    partial = partial_tensor(op, 7, F32)
    assert (partial.shape, partial.dtype, partial.producer) == ((24, 7), F32, None)
    last = final_reduce(op, partial)
    assert last.output is op.output and last.combiner == op.combiner == "max"
    assert last.extents == (24, 7) and last.inputs == [partial] and last.identity is op.identity
