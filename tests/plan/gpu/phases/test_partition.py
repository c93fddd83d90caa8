# SPDX-License-Identifier: Apache-2.0
"""Partitions into phases of parts: which values cross blocks, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tvm import relax
from tvm.relax import op as R

from stitch_testing.random.graphs import random_graph
from stitch_testing.stitch_graphs import stitch_graph
from tests.choices import CHOICES
from tests.graph.helpers import H200, build, graph, symbol
from tvm_stitch.graph.ir import Operator, StitchGraph, Tensor
from tvm_stitch.graph.rewrite.one_pass_variance import with_one_pass_variance
from tvm_stitch.plan.gpu.phases.partition import (
    Partition,
    _Partitioner,
    partition,
)
from tvm_stitch.plan.iteration.alignment import Misaligned, _Aligner
from tvm_stitch.plan.slices import Slice
from tvm_stitch.testing.workloads import grid_cases
from tvm_stitch.testing.workloads.grid_case import GridCase

F32 = "float32"


def parted(case: GridCase) -> Partition:
    return partition(stitch_graph(case.build()), H200)


def only(parts: list[Slice]) -> Slice:
    (part,) = parts
    return part


def read_by(part: Slice) -> set[Tensor]:
    made = {op.output for op in part.copies}
    return {t for op in part.copies for t in op.inputs} - made


def over(op_graph: StitchGraph, *axes: int) -> Operator:
    """Return the reduction over axes of these extents."""
    (op,) = [op for op in op_graph.reduces if tuple(int(a.extent) for a in op.reduce) == axes]
    return op


def test_gradients_of_layer_norm() -> None:
    """One part has all of a row: statistics, gradient, and what it adds to the sums. The sums are finished after it."""
    partitioned = parted(grid_cases.layer_norm_backward(4096, 768))
    first, second = (only(parts) for parts in partitioned.phases)
    assert first.domain.rows == 4096 and second.domain.rows == 768
    along = {op for op in partitioned.graph.reduces if op.output.size == 4096}
    across = {op for op in partitioned.graph.reduces if op.output.size == 768}
    assert (len(along), len(across)) == (4, 2)
    assert first.cross_row == across == set(partitioned.crossing.partials) and along <= set(first.roots)
    (dx,) = [t.producer for t in partitioned.graph.outputs if t.size == 4096 * 768]
    assert first.stored == {dx}
    assert {op.output for op in second.stored} == {op.output for op in across}
    assert (
        partitioned.crossing.stored == {} and partitioned.crossing.scalars == {}
    )  # no value of a row crosses blocks
    assert read_by(second) == set(partitioned.crossing.partials.values())


def test_batch_norm() -> None:
    """All sums come from one reading of the data. The statistics are finished once, and read by all."""
    case = grid_cases.batch_norm_training(8192, 256)
    partitioned = partition(with_one_pass_variance(stitch_graph(case.build())), H200)
    (shift, folding), (finishing,), (writing,) = partitioned.phases
    assert shift.replicated and set(partitioned.crossing.shared) == {op.output for op in shift.stored}
    assert folding.domain.rows == 8192 and len(folding.cross_row) == 3 and folding.stored == set()
    assert finishing.domain.rows == 256
    assert read_by(finishing) >= {partitioned.crossing.partials[op] for op in folding.cross_row}
    running = {t for t in partitioned.graph.outputs if t.size == 256}
    assert len(running) == 2 and running <= {op.output for op in finishing.stored}
    assert {op.output for op in writing.stored} == {t for t in partitioned.graph.outputs if t.size != 256}
    assert all(not part.cross_row for part in (shift, finishing, writing))
    assert all(f < len(partitioned.phases) - 1 for f in partitioned.crossing.stored.values())


def test_clipping_and_adam_over_five_tensors() -> None:
    """All norms are in one phase, which every block finishes by itself. Then each tensor has a part, side by side."""
    shapes = [(300, 40), (257,), (5, 3, 7), (64,), (1,)]
    partitioned = parted(grid_cases.clip_adam(shapes))
    norms, steps = partitioned.phases
    assert (
        {op for part in norms for op in part.cross_row}
        == set(partitioned.crossing.partials)
        == set(partitioned.crossing.scalars)
    )
    assert all(op.output.size == 1 and f == 0 for op, f in partitioned.crossing.scalars.items())
    assert len(partitioned.crossing.partials) == len(shapes) == len(steps)
    assert sorted(len(part.stored) for part in steps) == [3] * 5
    assert partitioned.crossing.stored == {}  # totals are in registers after the barrier


def test_chained_full_reductions() -> None:
    """Each needs the one before: a phase for each, all over the flat data."""
    partitioned = parted(grid_cases.standardize_by_max(64, 512))
    assert [only(parts).domain.flat for parts in partitioned.phases] == [True] * 4
    assert [len(only(parts).cross_row) for parts in partitioned.phases] == [1, 1, 1, 0]
    assert sorted(partitioned.crossing.scalars.values()) == [0, 1, 2]
    partitioned = parted(grid_cases.deviation_sum(64, 512))
    assert sorted(partitioned.crossing.scalars.values()) == [0, 1]


def test_a_total_that_is_an_output_is_written_in_a_phase_of_its_own() -> None:
    partitioned = parted(grid_cases.deviation_sum(64, 512))
    (last,) = [op for op, f in partitioned.crossing.scalars.items() if f == 1]
    assert last.output in partitioned.graph.outputs
    assert len(partitioned.phases) == 3 and partitioned.phases[2] == []


def test_figure_7() -> None:
    """Rows, then sums across the other tensor's rows, then their finish, then the product."""
    partitioned = parted(grid_cases.figure7(4096, 1024, 8192))
    rows, folding, finishing, writing = (only(parts) for parts in partitioned.phases)
    regional, crossing = over(partitioned.graph, 1024), over(partitioned.graph, 8192)
    assert rows.domain.rows == 4096 and regional in rows.roots and regional not in rows.stored
    (power,) = rows.stored
    assert power.name.startswith("T_power") and partitioned.crossing.stored[power.output] == 0
    assert folding.domain.rows == 8192 and folding.cross_row == {crossing}
    assert power.output in read_by(folding) and power not in folding.copies
    assert partitioned.crossing.partials[crossing] in read_by(finishing)
    assert {t.producer for t in partitioned.graph.outputs} == writing.stored and writing.domain.flat
    assert read_by(writing) == {power.output, crossing.output}


def test_disconnected_parts_share_a_phase() -> None:
    """Sums of columns and maxima of other rows: neither waits for the other."""

    def one(emit: Any, x: Any) -> Any:
        return [R.sum(emit(R.exp(x)), 0)]

    columns = stitch_graph(build(one, ((4096, 256), F32)))
    rows = graph(build(lambda emit, y: R.max(y, 1), ((513, 77), F32)))
    both = StitchGraph(
        "both",
        columns.inputs + rows.inputs,
        columns.operators + rows.operators,
        columns.outputs + rows.outputs,
    )
    partitioned = partition(both, H200)
    assert [sorted(int(p.domain.rows) for p in parts) for parts in partitioned.phases] == [[513, 4096], [256]]
    assert {op.output for parts in partitioned.phases for p in parts for op in p.stored} == set(both.outputs)


def test_symbolic_and_empty_extents_are_declined() -> None:
    symbolic = graph(build(lambda emit, x: R.sum(x, 1), ((symbol(), 64), F32)))
    with pytest.raises(Misaligned, match="symbolic or empty shape"):
        partition(symbolic, H200)


def test_no_more_phases_than_a_kernel_should_have() -> None:
    def chain(emit: Any, x: Any) -> Any:
        for _ in range(CHOICES.most_phases + 1):
            x = emit(R.subtract(x, emit(R.max(emit(R.exp(x))))))
        return [x]

    op_graph = stitch_graph(build(chain, ((64, 64), F32)))
    with pytest.raises(Misaligned, match=f"of at most {CHOICES.most_phases}"):
        partition(op_graph, H200)


def test_small_parts_of_a_phase_stand_in_order() -> None:
    """A part that every block evaluates by itself may read another such part of the phase, opened later."""
    partitioned = partition(stitch_graph(random_graph(200434, 4000, "grid").mod), H200)
    reading = 0
    for parts in partitioned.phases:
        made: set[Tensor] = set()
        for part in parts:
            needed = read_by(part) & set(partitioned.crossing.shared)
            assert needed <= made
            reading += bool(needed and part.replicated)
            made |= {op.output for op in part.stored} if part.replicated else set()
    assert reading


def test_a_join_whose_rows_lie_across_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(emit: Any, x: Any) -> Any:
        y = emit(R.sum(x, 1))
        return [y, emit(R.abs(y))]

    op_graph = graph(build(body, ((64, 32), F32)))
    made = _Partitioner(op_graph, replace(H200, sms=4), False, ())
    first, second = op_graph.operators
    part = made._open(first, 0, False, True)
    before = part.piece
    monkeypatch.setattr(
        "tvm_stitch.plan.gpu.phases.partition.is_strided", lambda alignment: alignment is not before.alignment
    )
    assert not made._join(part, second, False, True)
    assert part.piece is before and part.roots == (first,) and second not in made.home


def counted_visits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of one number, which counts the visits of aligners from now on."""
    visit, counted = _Aligner._visit, [0]

    def counting(*args: Any, **options: Any) -> int:
        counted[0] += 1
        return visit(*args, **options)

    monkeypatch.setattr(_Aligner, "_visit", counting)
    return counted


def test_many_results_are_aligned_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Element-wise results of one size share a part, each looked at a few times, however many there are."""

    def results(count: int, *shape: int) -> StitchGraph:
        def body(emit: Any, x: Any) -> list[Any]:
            return [emit(R.exp(emit(R.add(x, relax.const(float(i), F32))))) for i in range(count)]

        return graph(build(body, (shape, F32)))

    counted = counted_visits(monkeypatch)

    def visits(count: int) -> int:
        each = [results(count, 8, 16), results(count, 5, 7)]
        both = StitchGraph(
            "both",
            *(sum((getattr(g, kind) for g in each), []) for kind in ("inputs", "operators", "outputs")),
        )
        counted[0] = 0
        (parts,) = partition(both, replace(H200, sms=64)).phases
        assert [len(part.roots) for part in parts] == [count, count]
        assert all(part.alignment and len(part.alignment.roots) == count for part in parts)
        return counted[0]

    assert visits(16) < 2.5 * visits(8)


def test_the_results_of_a_scan_share_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result of a scan reads all earlier steps. Placing them all visits each step a few times."""
    counted = counted_visits(monkeypatch)

    def visits(count: int) -> int:
        def scan(emit: Any, a: Any, b: Any) -> list[Any]:
            shown, state = [], b
            for _ in range(count):
                state = emit(R.add(emit(R.multiply(state, a)), b))
                shown.append(emit(R.tanh(state)))
            return shown

        op_graph = graph(build(scan, ((8, 16), F32), ((8, 16), F32)))
        counted[0] = 0
        partition(op_graph, H200)
        return counted[0]

    assert visits(24) < 3 * visits(12)
