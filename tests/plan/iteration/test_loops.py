# SPDX-License-Identifier: Apache-2.0
"""Passes over a row: their order, what each evaluates, and what is kept between them."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from stitch_testing.random.graphs import random_graph
from tests.choices import CHOICES
from tests.graph.helpers import build, graph, graphs
from tvm_stitch.plan.iteration.alignment import Alignment, align
from tvm_stitch.plan.iteration.domain import At
from tvm_stitch.plan.iteration.loops import Keep, LoopNest, is_streamed, schedule
from tvm_stitch.testing.workloads.cases import cases, layer_norm, softmax

F32 = "float32"


def names(keys: Any) -> list[str]:
    return [k[0].name.rstrip("0123456789_") for k in keys]


def test_softmax_sweeps_three_times() -> None:
    op_graph = graph(softmax(6, 20).build())
    sched = schedule(align(op_graph, CHOICES))
    assert [len(p.reduces) for p in sched.passes] == [1, 1, 0]
    assert [p.level for p in sched.passes] == [0, 1, 2] and all(p.columns == 20 for p in sched.passes)
    first, second, third = sched.passes
    assert [t.name for t, _ in first.loads] == [t.name for t, _ in second.loads] == [
        "x"
    ] and third.loads == []
    assert names(third.reads) == ["compute"], "the exponential is kept"
    assert names(sched.kept_values) == ["compute"]
    assert [t.name for t, _ in sched.kept_loads] == ["x"]


def test_a_light_value_of_one_source_is_computed_again() -> None:
    """x - max twice: cheaper again from the kept x than kept next to it."""

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.subtract(x, emit(R.max(x, -1, True))))
        return [R.multiply(y, emit(R.sum(y, -1, True)))]

    sched = schedule(align(graph(build(body, ((6, 20), F32))), CHOICES))
    assert sched.kept_values == set() and [t.name for t, _ in sched.kept_loads] == ["x0"]


def test_a_light_value_of_two_sources_is_kept_instead_of_them() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        z = emit(R.add(x, y))
        return [R.multiply(z, emit(R.sum(z, -1, True)))]

    sched = schedule(align(graph(build(body, ((6, 20), F32), ((6, 20), F32))), CHOICES))
    assert names(sched.kept_values) == ["T_add"] and sched.kept_loads == set()


def test_layer_norm_reads_its_scales_in_the_last_pass_only() -> None:
    sched = schedule(align(graph(layer_norm(6, 20).build()), CHOICES))
    assert [sorted(t.name for t, _ in p.loads) for p in sched.passes] == [
        ["x"],
        ["x"],
        ["beta", "gamma", "x"],
    ]
    assert len(sched.passes[2].row_values) >= 1, "rsqrt once a row"


@pytest.mark.parametrize("keep", Keep)
def test_what_may_be_kept(keep: Keep) -> None:
    sched = schedule(align(graph(softmax(6, 20).build()), CHOICES), keep)
    assert bool(sched.kept_values) == (keep is Keep.ALL)
    assert bool(sched.kept_loads) == (keep is not Keep.NOTHING)


def test_row_outputs_come_last() -> None:
    def body(emit: Any, x: Any) -> Any:
        high = emit(R.max(x, -1, True))
        return [R.subtract(x, high), high, R.exp(high)]

    sched = schedule(align(graph(build(body, ((6, 20), F32))), CHOICES))
    assert len(sched.row_outputs) == 2 and names(sched.final_values) == ["compute"]


def test_reductions_of_equal_level_share_a_pass() -> None:
    def body(emit: Any, x: Any) -> Any:
        return [R.add(emit(R.max(x, -1, True)), emit(R.sum(emit(R.exp(x)), -1, True)))]

    sched = schedule(align(graph(build(body, ((6, 20), F32))), CHOICES))
    assert [len(p.reduces) for p in sched.passes] == [2]


def test_inputs_that_rows_share_are_not_streamed() -> None:
    alignment = align(graph(layer_norm(6, 20).build()), CHOICES)
    sched = schedule(alignment)
    streamed = {t.name for p in sched.passes for t, point in p.loads if is_streamed(6, (t, point))}
    assert streamed == {"x"}


def check(alignment: Alignment, sched: LoopNest) -> None:
    """Check that every value that a pass reads was made before, in it or by an earlier one. Every root is made once."""
    own = set(alignment.graph.operators)
    kept: set[Any] = set()
    rows: set[Any] = set()
    reduced: set[Any] = set()
    made: list[Any] = []
    for p in sched.passes:
        assert set(p.reads) <= kept
        here = set(p.reads)
        for key in p.row_values:
            for access, point in alignment.children(key):
                producer = access.tensor.producer
                if point is None or producer not in own:
                    continue
                if not (access.guarded and point.at is At.INDEX):
                    assert (producer, point) in rows or producer in reduced
            rows.add(key)
        for key in p.values:
            if key not in p.reads:
                for access, point in alignment.children(key):
                    producer = access.tensor.producer
                    if point is None or (access.guarded and point.at is At.INDEX):
                        continue
                    if producer in own:
                        known = (producer, point) in here if point.per_column else (producer, point) in rows
                        assert known or producer in reduced, (key, access.tensor)
                    elif point.per_column and not access.guarded:
                        assert (access.tensor, point) in p.loads
            here.add(key)
        assert set(p.outputs) <= here
        made += p.outputs
        reduced |= set(p.reduces)
        kept |= {k for k in here if k in sched.kept_values}
    made += sched.row_outputs
    outputs = {t.producer for t in alignment.graph.outputs}
    assert sorted(op.name for op, _ in made) == sorted(op.name for op in outputs)
    assert reduced == set(alignment.graph.reduces)


@pytest.mark.parametrize("keep", Keep)
@pytest.mark.parametrize("case", cases("test"), ids=lambda case: case.name)
def test_passes_of_the_cases(case: Any, keep: Keep) -> None:
    for op_graph in graphs(case.build()):
        alignment = align(op_graph, CHOICES)
        check(alignment, schedule(alignment, keep))


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_passes_of_random_graphs(first: int) -> None:
    for seed in range(first, first + 10):
        for op_graph in graphs(random_graph(seed, max_elements=600).mod):
            alignment = align(op_graph, CHOICES)
            for keep in Keep:
                check(alignment, schedule(alignment, keep))
