# SPDX-License-Identifier: Apache-2.0
"""Dominants, groups and schemes, on the graph of AStitch's Fig. 7 and on others."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from tests.graph.helpers import build, graph, operator
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.plan.dominants import Scheme, candidates, group, one_to_many_consumers, schemes
from tvm_stitch.testing.cases import cases

F32 = "float32"


def figure7(rows: int = 16, columns: int = 128) -> StitchGraph:
    """parameter.1 <rows,columns>, parameter.2 <rows,1>, parameter.3 <rows,columns>; operators in the figure's order.

    Blocks, by name: broadcast.1, add.1, reduce.1, divide.1, power.1, broadcast.2, divide.2, reduce.2, broadcast.3,
    multiply.1.
    """

    def body(emit: Any, p1: Any, p2: Any, p3: Any) -> Any:
        shape = (rows, columns)
        broadcast1 = emit(R.broadcast_to(p2, shape))
        add1 = emit(R.add(p1, broadcast1))
        reduce1 = emit(R.sum(add1, -1, True))
        divide1 = emit(R.divide(reduce1, p2))
        power1 = emit(R.power(divide1, p2))
        broadcast2 = emit(R.broadcast_to(power1, shape))
        divide2 = emit(R.divide(p3, broadcast2))
        reduce2 = emit(R.sum(divide2, -1, True))
        broadcast3 = emit(R.broadcast_to(reduce2, shape))
        return [R.multiply(broadcast2, broadcast3)]

    full = ((rows, columns), F32)
    return graph(build(body, full, ((rows, 1), F32), full))


NAMES = (
    "broadcast.1 add.1 reduce.1 divide.1 power.1 broadcast.2 divide.2 reduce.2 broadcast.3 multiply.1".split()
)


def named(found: StitchGraph) -> dict[Any, str]:
    assert len(found.operators) == len(NAMES)
    return dict(zip(found.operators, NAMES))


def test_figure_7_candidates() -> None:
    found = figure7()
    name = named(found)
    assert {name[op] for op in candidates(found)} == {"reduce.1", "power.1", "reduce.2", "multiply.1"}
    assert [name[op] for op in one_to_many_consumers(found.operators[NAMES.index("power.1")])] == [
        "broadcast.2"
    ]


def test_figure_7_groups() -> None:
    """Dominants reduce.1 (sub-dominant power.1) and reduce.2 (sub-dominant multiply.1), as the paper says."""
    found = figure7()
    name = named(found)
    shown = {
        name[g.dominant]: ([name[op] for op in g.sub_dominants], {name[op] for op in g.members})
        for g in group(found)
    }
    assert shown == {
        "reduce.1": (["power.1"], {"broadcast.1", "add.1", "reduce.1", "divide.1", "power.1"}),
        "reduce.2": (["multiply.1"], {"broadcast.2", "divide.2", "reduce.2", "broadcast.3", "multiply.1"}),
    }


def test_figure_7_schemes() -> None:
    """In-block: the candidates are Regional, the output is Independent, all others Local."""
    found = figure7()
    name = named(found)
    shown = {name[op]: s for op, s in schemes(found).items()}
    assert {n for n, s in shown.items() if s is Scheme.REGIONAL} == {"reduce.1", "power.1", "reduce.2"}
    assert shown["multiply.1"] is Scheme.INDEPENDENT
    assert sum(s is Scheme.LOCAL for s in shown.values()) == 6


def softmax() -> StitchGraph:
    def body(emit: Any, x: Any) -> Any:
        e = emit(R.exp(emit(R.subtract(x, emit(R.max(x, -1, True))))))
        return [R.divide(e, emit(R.sum(e, -1, True)))]

    return graph(build(body, ((6, 20), F32)))


def test_softmax_has_two_groups() -> None:
    found = softmax()
    groups = {g.dominant.name: [op.name for op in g.sub_dominants] for g in group(found)}
    assert groups == {"x0_red": [], operator(found, "lv2_red").name: ["T_divide"]}


def test_a_light_value_that_is_broadcast_is_no_candidate() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return [R.add(emit(R.add(x, x)), y)]

    found = graph(build(body, ((6, 1), F32), ((6, 20), F32)))
    assert [op.output for op in candidates(found)] == found.outputs
    (only,) = group(found)
    assert len(only.members) == 2


def test_a_heavy_value_that_is_not_broadcast_is_no_candidate() -> None:
    def body(emit: Any, x: Any) -> Any:
        return [R.add(emit(R.exp(x)), x)]

    found = graph(build(body, ((6, 20), F32)))
    assert [op.output for op in candidates(found)] == found.outputs
    assert list(schemes(found).values()) == [Scheme.LOCAL, Scheme.INDEPENDENT]


@pytest.mark.parametrize("case", cases("test")[:-1], ids=lambda case: case.name)
def test_groups_partition_the_operators_and_meet_at_dominants(case: Any) -> None:
    found = graph(case.build())
    groups = group(found)
    home = {op: g for g in groups for op in g.members}
    assert sorted(op.name for g in groups for op in g.members) == sorted(op.name for op in found.operators)
    wanted = set(candidates(found))
    assert {g.dominant for g in groups} | {op for g in groups for op in g.sub_dominants} == wanted
    for g in groups:
        assert g.dominant.is_reduce or not any(op.is_reduce for op in g.members)
    for op in found.operators:
        for t in op.inputs:
            if t.producer is not None and home[t.producer] is not home[op]:
                assert t.producer in wanted
