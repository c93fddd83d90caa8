# SPDX-License-Identifier: Apache-2.0
"""The groups and schemes that plans hold, for the graph of AStitch's Fig. 7 and for others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tvm_ffi
from tvm.relax import op as R

from stitch_testing.stitch_graphs import stitch_graph, stitch_graphs
from tests.graph.helpers import H200, build, graph, operator, stitch_functions
from tests.plan.iteration.test_alignment import composed
from tvm_stitch.codegen.emit import emit
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import DeviceModel, device_model
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.graph.reader import read
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.plan.finalise import crossing_tensors
from tvm_stitch.plan.iteration.alignment import Misaligned
from tvm_stitch.plan.kernel import KernelPlan, Scheme
from tvm_stitch.records.describe import describe
from tvm_stitch.report.report import Report
from tvm_stitch.target import resolve_target
from tvm_stitch.testing.workloads import grid_cases
from tvm_stitch.testing.workloads.cases import cases, power_broadcast_add
from tvm_stitch.testing.workloads.cases import softmax as softmax_case

F32 = "float32"
CUDA = {"kind": "cuda", "arch": "sm_90"}
CPU = device_model(resolve_target("llvm"))


def figure7(rows: int = 16, columns: int = 128) -> StitchGraph:
    """Take parameter.1 <rows,columns>, parameter.2 <rows,1>, parameter.3 <rows,columns>. Operators have the figure's
    order.

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


def named(op_graph: StitchGraph) -> dict[Any, str]:
    assert len(op_graph.operators) == len(NAMES)
    return dict(zip(op_graph.operators, NAMES))


def shown(plan: KernelPlan, name: dict[Any, str]) -> list[dict[str, tuple[list[str], set[str]]]]:
    """Return the groups of every stage by dominant: the sub-dominants, and the members."""
    return [
        {
            name[g.dominant]: ([name[op] for op in g.sub_dominants], {name[op] for op in g.members})
            for g in stage.groups
        }
        for stage in plan.stages
    ]


def test_figure_7_groups() -> None:
    """Dominants reduce.1 (sub-dominant power.1) and reduce.2 (sub-dominant multiply.1), as the paper says."""
    plan = choose_plan(figure7(), H200)
    assert shown(plan, named(plan.graph)) == [
        {
            "reduce.1": (["power.1"], {"broadcast.1", "add.1", "reduce.1", "divide.1", "power.1"}),
            "reduce.2": (
                ["multiply.1"],
                {"broadcast.2", "divide.2", "reduce.2", "broadcast.3", "multiply.1"},
            ),
        }
    ]


def test_figure_7_schemes() -> None:
    """In-block: what is shared is Regional, the output is Independent, all others Local."""
    plan = choose_plan(figure7(), H200)
    name = named(plan.graph)
    scheme = {name[op]: s for op, s in plan.schemes.items()}
    assert {n for n, s in scheme.items() if s is Scheme.REGIONAL} == {"reduce.1", "power.1", "reduce.2"}
    assert scheme["multiply.1"] is Scheme.INDEPENDENT
    assert sum(s is Scheme.LOCAL for s in scheme.values()) == 6


def softmax() -> StitchGraph:
    def body(emit: Any, x: Any) -> Any:
        e = emit(R.exp(emit(R.subtract(x, emit(R.max(x, -1, True))))))
        return [R.divide(e, emit(R.sum(e, -1, True)))]

    return graph(build(body, ((6, 20), F32)))


def test_softmax_has_two_groups() -> None:
    plan = choose_plan(softmax(), H200)
    found = {g.dominant.name: [op.name for op in g.sub_dominants] for g in plan.stage.groups}
    assert found == {"x0_red": [], operator(plan.graph, "lv2_red").name: ["T_divide"]}


def test_a_light_value_that_is_broadcast_is_local() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return [R.add(emit(R.add(x, x)), y)]

    plan = choose_plan(graph(build(body, ((6, 1), F32), ((6, 20), F32))), H200)
    (only,) = plan.stage.groups
    assert (only.dominant.output, only.sub_dominants) == (plan.graph.outputs[0], ()) and len(
        only.members
    ) == 2
    assert list(plan.schemes.values()) == [Scheme.LOCAL, Scheme.INDEPENDENT]


def test_a_light_value_behind_a_heavy_one_dominates_where_rows_are_its_elements() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return [R.add(emit(R.add(emit(R.exp(x)), x)), y)]

    plan = choose_plan(graph(build(body, ((6, 1), F32), ((6, 20), F32))), H200)
    exp, shifted, out = plan.graph.operators
    assert plan.stage.slice.dominant is shifted
    assert [(g.dominant, g.members) for g in plan.stage.groups] == [(shifted, (exp, shifted)), (out, (out,))]
    assert [plan.schemes[op] for op in (exp, shifted, out)] == [
        Scheme.LOCAL, Scheme.REGIONAL, Scheme.INDEPENDENT
    ]  # fmt: skip


def test_a_heavy_value_that_is_not_broadcast_is_local() -> None:
    def body(emit: Any, x: Any) -> Any:
        return [R.add(emit(R.exp(x)), x)]

    plan = choose_plan(graph(build(body, ((6, 20), F32))), H200)
    assert list(plan.schemes.values()) == [Scheme.LOCAL, Scheme.INDEPENDENT]
    assert len(plan.stage.groups) == 1


@pytest.mark.parametrize("case", [*cases("test"), *grid_cases.grid_cases("test")], ids=lambda case: case.name)
@pytest.mark.parametrize("device", [H200, CPU], ids=["cuda", "llvm"])
def test_the_groups_of_a_stage_are_all_that_it_computes(case: Any, device: DeviceModel) -> None:
    """They meet at dominants and sub-dominants, and where a reduction is in a group one dominates it."""
    for op_graph in stitch_graphs(case.build()):
        try:
            plan = choose_plan(op_graph, device)
        except Misaligned:  # a scope made for a GPU
            assert not device.is_gpu
            continue
        for stage in plan.stages:
            made = stage.groups
            home = {op: g for g in made for op in g.members}
            assert sorted(op.name for g in made for op in g.members) == sorted(
                op.name for op in stage.slice.copies
            )
            ends = {g.dominant for g in made} | {op for g in made for op in g.sub_dominants}
            assert set(stage.slice.roots) <= ends
            assert {op for op in ends - set(stage.slice.roots) if op.is_reduce} == set()
            for g in made:
                assert g.dominant.is_reduce or not any(op.is_reduce for op in g.members)
            producer = {op.output: op for op in home}
            for op in home:
                read = [producer[t] for t in op.inputs if t in producer]
                assert all(home[p] is home[op] or p in ends for p in read)


def test_what_nothing_needs_is_in_no_group() -> None:
    def body(emit: Any, x: Any) -> Any:
        return [R.exp(emit(R.split(x, 2, 0))[0])]

    plan = choose_plan(graph(build(body, ((4, 3), F32))), H200)
    (only,) = plan.stage.groups
    assert len(plan.graph.operators) == 3 and len(only.members) == 2


# -- the dominant says what is emitted -----------------------------------------------------------------------
@pytest.mark.parametrize("target", [CUDA, "llvm"], ids=["cuda", "llvm"])
def test_another_dominant_changes_mapping_code_and_report(target: Any) -> None:
    """A power that dominates is computed once a row. If the output dominates, all elements are a row and compute it."""
    ((name, func),) = stitch_functions(power_broadcast_add(64, 128).build()).items()
    found, device = read(func, name), device_model(resolve_target(target))
    plan, changed = choose_plan(found, device), choose_plan(found, device, preferred=["T_add"])
    assert [g.dominant.name for g in plan.stage.groups] == ["T_power", "T_add"]
    assert [(g.dominant.name, len(g.members)) for g in changed.stage.groups] == [("T_add", 3)]
    domain, other = plan.stage.alignment.domain, changed.stage.alignment.domain
    assert (domain.rows, domain.flat, other.flat) == (64, False, True)
    assert plan.stage.mapping != changed.stage.mapping
    before, after = describe("kernel", plan), describe("kernel", changed)
    power = [[o["scheme"] for o in k.operators if "T_power" in o["operator"]] for k in (before, after)]
    assert power == [["Regional"], ["Local"]]
    assert [[g["dominant"] for g in k.groups] for k in (before, after)] == [["T_power", "T_add"], ["T_add"]]
    assert Report("", [before]).verbose() != Report("", [after]).verbose()
    once, again = (emit(func, each) for each in (plan, changed))
    assert not tvm_ffi.structural_equal(once, again, map_free_vars=True)


def test_another_dominant_changes_the_stages_of_a_grid() -> None:
    """A sum along rows that dominates opens the stage of its group, which the output before it joins."""

    def body(emit: Any, x: Any) -> Any:
        doubled = emit(R.add(x, x))
        return [emit(R.negative(doubled)), emit(R.sum(doubled, 1)), emit(R.sum(doubled, 0))]

    op_graph = composed(body, ((4096, 768), F32))
    plan = choose_plan(op_graph, H200)
    changed = choose_plan(op_graph, H200, preferred=[op_graph.reduces[0].name])
    stages = [[stage.slice.domain.rows for stage in p.phases[0]] for p in (plan, changed)]
    assert stages == [[1, 4096], [4096]]
    opened = [[stage.slice.dominant for stage in p.phases[0]] for p in (plan, changed)]
    assert opened == [[op_graph.operators[1], op_graph.reduces[0]], [op_graph.reduces[0]]]
    (group,) = changed.phases[0][0].groups
    assert (group.dominant, len(group.sub_dominants)) == (op_graph.reduces[0], 2)


def test_a_stage_that_moves_takes_its_groups_along() -> None:
    """A report tells of a phase what the plan has there, whatever the graph would suggest."""
    plan = planned(grid_cases.layer_norm_backward(4096, 768).build())
    first, *rest = plan.phases
    fewer = replace(plan, phases=tuple(rest))
    kept = [g["members"] for g in describe("kernel", plan).groups if g["phase"] > 0]
    assert kept == [g["members"] for g in describe("kernel", fewer).groups] != []
    named = {op.name for stage in first for op in stage.slice.copies}
    assert not named <= {name for members in kept for name in members}


# -- schemes are final when there is a plan ------------------------------------------------------------------
def planned(mod: Any, **options: Any) -> KernelPlan:
    config = StitchConfig(**options)
    return choose_plan(stitch_graph(mod, config), H200, config)


def by_scheme(plan: KernelPlan) -> dict[Scheme, list[str]]:
    """Return the operators of each scheme, by name."""
    found: dict[Scheme, list[str]] = {}
    for op, scheme in plan.schemes.items():
        found.setdefault(scheme, []).append(op.name)
    return found


def test_figure_7_as_the_paper_has_it() -> None:
    """reduce.1 Regional, power.1 and reduce.2 Global, multiply.1 Independent, the rest Local.

    The paper has multiply.1 in reduce.2's group, across a barrier. Here it is in a stage of its own, and so a group.
    """
    plan = planned(grid_cases.figure7(4096, 1024, 8192).build())
    assert plan.grid_wide
    reshape, *rest = plan.graph.operators  # parameter.2 is a vector here: it becomes a column first
    name = {reshape: "reshape", **dict(zip(rest, NAMES, strict=True))}
    scheme = {name[op]: s for op, s in plan.schemes.items()}
    expected = dict.fromkeys(["reshape", *NAMES], Scheme.LOCAL)
    expected |= {"reduce.1": Scheme.REGIONAL, "multiply.1": Scheme.INDEPENDENT}
    expected |= {"power.1": Scheme.GLOBAL, "reduce.2": Scheme.GLOBAL}
    assert scheme == expected
    finished = [op for stage in plan.stages for op in stage.slice.roots if op not in name]
    name |= dict.fromkeys(finished, "the rest of reduce.2")
    assert shown(plan, name) == [
        {"reduce.1": (["power.1"], {"reshape", "broadcast.1", "add.1", "reduce.1", "divide.1", "power.1"})},
        {"reduce.2": ([], {"broadcast.2", "divide.2", "reduce.2"})},
        {"the rest of reduce.2": ([], {"the rest of reduce.2"})},
        {"multiply.1": ([], {"broadcast.2", "broadcast.3", "multiply.1"})},
    ]


def test_figure_7_in_other_shapes_stays_in_the_block() -> None:
    """If every reduction is along the same rows, the locality check says Regional throughout."""
    plan = choose_plan(figure7(4096, 1024), H200)
    name = named(plan.graph)
    scheme = {name[op]: s for op, s in plan.schemes.items()}
    assert [scheme[n] for n in ("reduce.1", "power.1", "reduce.2")] == [Scheme.REGIONAL] * 3


def test_gradients_of_layer_norm() -> None:
    """Statistics of a row are read in its block. Sums across rows cross blocks."""
    plan = planned(grid_cases.layer_norm_backward(4096, 768).build())
    scheme = plan.schemes
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
    scheme, crossing = plan.schemes, crossing_tensors(plan)
    assert crossing and all(scheme[t.producer] is Scheme.GLOBAL for t in crossing if t.producer)
    (normal,) = [
        g
        for stage in plan.stages
        for g in stage.groups
        if any(op.output.size == 8192 * 256 and op.output in plan.graph.outputs for op in g.members)
    ]
    assert not any(op.output in crossing for op in normal.members)


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
    final = plan.schemes
    assert [final[op] for op in plan.graph.reduces] == [scheme, scheme]
    assert {final[op] for op in plan.graph.operators if not op.is_reduce} <= {
        Scheme.LOCAL,
        Scheme.INDEPENDENT,
    }


def test_a_heavy_value_of_a_row_stays_in_its_block() -> None:
    schemes = by_scheme(planned(power_broadcast_add(64, 128).build()))
    assert [n for n in schemes[Scheme.REGIONAL] if "power" in n] == schemes[Scheme.REGIONAL] != []


def test_a_heavy_value_that_every_row_computes_again_is_local() -> None:
    """It is read along the columns by all rows: no block has it for the others."""

    def body(emit: Any, x: Any, scale: Any) -> Any:
        total = emit(R.sum(emit(R.multiply(x, emit(R.exp(scale)))), -1, True))
        return [R.divide(x, total)]

    mod = build(body, ((64, 128), F32), ((128,), F32))
    schemes = by_scheme(planned(mod))
    assert [n for n in schemes[Scheme.LOCAL] if "exp" in n or "compute" in n] != []
    assert len(schemes[Scheme.REGIONAL]) == 1


@pytest.mark.parametrize("case", grid_cases.grid_cases("gpu"), ids=lambda case: case.label)
def test_every_scheme_says_where_the_plan_keeps_a_value(case: Any) -> None:
    for op_graph in stitch_graphs(case.build()):
        plan = choose_plan(op_graph, H200)
        scheme = plan.schemes
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
