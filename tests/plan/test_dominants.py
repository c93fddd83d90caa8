# SPDX-License-Identifier: Apache-2.0
"""Dominants, groups and schemes, on the graph of AStitch's Fig. 7 and on others."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from tests.graph.helpers import H200, build, graph, operator
from tvm_stitch.config import StitchConfig
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.plan.dominants import (
    Scheme,
    candidates,
    crossing_tensors,
    final_schemes,
    group,
    one_to_many_consumers,
    schemes,
)
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.testing import grid_cases
from tvm_stitch.testing.cases import cases, power_broadcast_add
from tvm_stitch.testing.cases import softmax as softmax_case
from tvm_stitch.testing.plan_checks import stitch_graph, stitch_graphs

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


# -- schemes are final when there is a plan ------------------------------------------------------------------
def planned(mod: Any, **options: Any) -> KernelPlan:
    config = StitchConfig(**options)
    return choose_plan(stitch_graph(mod, config), H200, config)


def by_scheme(plan: KernelPlan) -> dict[Scheme, list[str]]:
    """The operators of each scheme, by name."""
    found: dict[Scheme, list[str]] = {}
    for op, scheme in final_schemes(plan).items():
        found.setdefault(scheme, []).append(op.name)
    return found


def test_figure_7_as_the_paper_has_it() -> None:
    """reduce.1 Regional, power.1 and reduce.2 Global, multiply.1 Independent, the rest Local; the paper's groups."""
    plan = planned(grid_cases.figure7(4096, 1024, 8192).build())
    assert plan.grid_wide
    reshape, *rest = plan.graph.operators  # parameter.2 is a vector here: it becomes a column first
    name = {reshape: "reshape", **dict(zip(rest, NAMES, strict=True))}
    scheme = {name[op]: s for op, s in final_schemes(plan).items()}
    expected = dict.fromkeys(["reshape", *NAMES], Scheme.LOCAL)
    expected |= {"reduce.1": Scheme.REGIONAL, "multiply.1": Scheme.INDEPENDENT}
    expected |= {"power.1": Scheme.GLOBAL, "reduce.2": Scheme.GLOBAL}
    assert scheme == expected
    groups = {
        name[g.dominant]: ([name[op] for op in g.sub_dominants], {name[op] for op in g.members})
        for g in group(plan.graph, crossing_tensors(plan))
    }
    assert groups == {
        "reduce.1": (["power.1"], {"reshape", "broadcast.1", "add.1", "reduce.1", "divide.1", "power.1"}),
        "reduce.2": (["multiply.1"], {"broadcast.2", "divide.2", "reduce.2", "broadcast.3", "multiply.1"}),
    }


def test_figure_7_in_other_shapes_stays_in_the_block() -> None:
    """Where every reduction is along the same rows, the locality check says Regional throughout."""
    plan = choose_plan(figure7(4096, 1024), H200)
    name = named(plan.graph)
    scheme = {name[op]: s for op, s in final_schemes(plan).items()}
    assert [scheme[n] for n in ("reduce.1", "power.1", "reduce.2")] == [Scheme.REGIONAL] * 3


def test_gradients_of_layer_norm() -> None:
    """Statistics of a row are read in its block; sums across rows cross blocks."""
    plan = planned(grid_cases.layer_norm_backward(4096, 768).build())
    scheme = final_schemes(plan)
    across = [op for op in plan.graph.reduces if op.output.size == 768]
    along = [op for op in plan.graph.reduces if op.output.size == 4096]
    assert (len(across), len(along)) == (2, 4)
    assert {scheme[op] for op in across} == {Scheme.GLOBAL} and {scheme[op] for op in along} == {
        Scheme.REGIONAL
    }
    (dx,) = [t.producer for t in plan.graph.outputs if len(t.shape) == 2 and t.producer]
    assert scheme[dx] is Scheme.INDEPENDENT
    assert sum(s is Scheme.GLOBAL for s in scheme.values()) == 2


def test_statistics_of_a_batch_are_global() -> None:
    """Light values as well: the mean of a channel is read by other blocks than the one that finished it."""
    plan = planned(grid_cases.batch_norm_training(8192, 256).build())
    assert plan.grid_wide
    scheme, crossing = final_schemes(plan), crossing_tensors(plan)
    assert crossing and all(scheme[t.producer] is Scheme.GLOBAL for t in crossing if t.producer)
    groups = group(plan.graph, crossing)
    (normal,) = [g for g in groups if any(op.output.size == 8192 * 256 for op in g.members)]
    assert not any(op.output.size == 256 for op in normal.members)
    assert sorted(op.name for g in groups for op in g.members) == sorted(
        op.name for op in plan.graph.operators
    )


@pytest.mark.parametrize(
    ("sizes", "options", "scheme"),
    [
        ((64, 1024), {}, Scheme.REGIONAL),
        ((64, 100_000), {}, Scheme.CLUSTER),
        ((2, 4_000_000), {}, Scheme.GLOBAL),
        ((64, 100_000), {"clusters": False, "grid_barriers": False}, Scheme.REGIONAL),
        ((2, 4_000_000), {"clusters": False, "grid_barriers": False}, Scheme.REGIONAL),
    ],
)
def test_reductions_take_the_scheme_of_their_exchange(
    sizes: tuple[int, int], options: dict[str, bool], scheme: Scheme
) -> None:
    plan = planned(softmax_case(*sizes).build(), **options)
    final = final_schemes(plan)
    assert [final[op] for op in plan.graph.reduces] == [scheme, scheme]
    assert {final[op] for op in plan.graph.operators if not op.is_reduce} <= {
        Scheme.LOCAL,
        Scheme.INDEPENDENT,
    }


def test_a_heavy_value_of_a_row_stays_in_its_block() -> None:
    found = by_scheme(planned(power_broadcast_add(64, 128).build()))
    assert [n for n in found[Scheme.REGIONAL] if "power" in n] == found[Scheme.REGIONAL] != []


def test_a_heavy_value_that_every_row_computes_again_is_local() -> None:
    """It is read along the columns by all rows: no block has it for the others."""

    def body(emit: Any, x: Any, scale: Any) -> Any:
        total = emit(R.sum(emit(R.multiply(x, emit(R.exp(scale)))), -1, True))
        return [R.divide(x, total)]

    mod = build(body, ((64, 128), F32), ((128,), F32))
    found = by_scheme(planned(mod))
    assert [n for n in found[Scheme.LOCAL] if "exp" in n or "compute" in n] != []
    assert len(found[Scheme.REGIONAL]) == 1


@pytest.mark.parametrize("case", grid_cases.grid_cases("gpu"), ids=lambda case: case.label)
def test_every_scheme_says_where_the_plan_keeps_a_value(case: Any) -> None:
    for found in stitch_graphs(case.build()):
        plan = choose_plan(found, H200)
        scheme = final_schemes(plan)
        assert set(scheme) == set(plan.graph.operators)
        for op, where in scheme.items():
            if where is Scheme.INDEPENDENT:
                assert op.output in plan.graph.outputs and not op.output.consumers
            elif where is Scheme.LOCAL:
                assert not op.is_reduce
        if plan.grid_wide:
            crossing = crossing_tensors(plan)
            written = {op.output for phase in plan.phases for p in phase for op in p.slice.stored}
            assert crossing <= written | {op.output for op in plan.crossing.scalars}
