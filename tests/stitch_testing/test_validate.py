# SPDX-License-Identifier: Apache-2.0
"""The validator finds each kind of broken graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tvm.relax import op as R

from stitch_testing.validate import InvalidGraph, validate
from tests.graph.helpers import build, graph
from tvm_stitch import compat
from tvm_stitch.graph.ir import Axis, StitchGraph, Tensor


def made() -> StitchGraph:
    def body(emit: Any, x: Any, b: Any) -> Any:
        y = emit(R.add(x, b))
        return [R.divide(y, emit(R.sum(y, -1, True))), y]

    return graph(build(body, ((4, 8), "float32"), ((8,), "float32")))


def test_a_right_graph_passes() -> None:
    validate(made())


def reversed_order(g: StitchGraph) -> None:
    g.operators.reverse()


def lost_producer(g: StitchGraph) -> None:
    g.operators[0].output.producer = None


def produced_input(g: StitchGraph) -> None:
    g.inputs[0].producer = g.operators[0]


def lost_consumer(g: StitchGraph) -> None:
    g.inputs[0].consumers.clear()


def wrong_extent(g: StitchGraph) -> None:
    op = g.operators[0]
    op.spatial = (Axis(op.spatial[0].var, 5), *op.spatial[1:])


def missing_axis(g: StitchGraph) -> None:
    g.operators[0].spatial = g.operators[0].spatial[:1]


def lost_combiner(g: StitchGraph) -> None:
    (op,) = g.reduces
    op.combiner = None


def lost_identity(g: StitchGraph) -> None:
    (op,) = g.reduces
    op.identity = None


def lost_access(g: StitchGraph) -> None:
    g.operators[0].accesses = g.operators[0].accesses[:-1]


def other_guard(g: StitchGraph) -> None:
    op = g.operators[0]
    op.accesses = (replace(op.accesses[0], guarded=True), *op.accesses[1:])


def other_rank(g: StitchGraph) -> None:
    op = g.operators[0]
    op.accesses = (replace(op.accesses[0], indices=op.accesses[0].indices[:1]), *op.accesses[1:])


def other_operand(g: StitchGraph) -> None:
    op = g.operators[0]
    op.operand = dict.fromkeys(op.operand, g.inputs[1])


def loose_variable(g: StitchGraph) -> None:
    op = g.operators[0]
    loose = compat.tir.Var("loose", "int64")
    op.accesses = (replace(op.accesses[0], indices=(loose, *op.accesses[0].indices[1:])), *op.accesses[1:])


def foreign_output(g: StitchGraph) -> None:
    g.outputs.append(Tensor("foreign", (4, 8), "float32"))


def output_twice(g: StitchGraph) -> None:
    g.outputs.append(g.outputs[0])


def made_twice(g: StitchGraph) -> None:
    g.operators.append(g.operators[-1])


FAULTS: dict[Callable[[StitchGraph], None], str] = {
    reversed_order: "before it is made",
    lost_producer: "another producer",
    produced_input: "input .* has a producer",
    lost_consumer: "is no consumer of",
    wrong_extent: "axis extent 5 for a dimension of 4",
    missing_axis: "fewer spatial axes",
    lost_combiner: "reduced axes without a combiner",
    lost_identity: "combiner and identity go together",
    lost_access: "2 loads but 1 accesses",
    other_guard: "guard",
    other_rank: "rank of a read",
    other_operand: "reads another tensor",
    loose_variable: "mentions loose",
    foreign_output: "not made by an operator",
    output_twice: "returned twice",
    made_twice: "made twice",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_faults_are_found(fault: Callable[[StitchGraph], None]) -> None:
    broken = made()
    fault(broken)
    with pytest.raises(InvalidGraph, match=FAULTS[fault]):
        validate(broken)
