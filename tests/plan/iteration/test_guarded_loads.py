# SPDX-License-Identifier: Apache-2.0
"""Loads below conditions that whole vectors of columns agree on."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, graph
from tvm_stitch.plan.iteration.alignment import align
from tvm_stitch.plan.iteration.guarded_loads import NONE, GuardedLoads, guarded_loads
from tvm_stitch.plan.iteration.loops import schedule


def loads_of(body: Any, *specs: Any, vector: int = 8, **choices: Any) -> GuardedLoads:
    """Return the guarded loads of a module's only pass."""
    aligned = align(graph(build(body, *specs)), CHOICES)
    (p,) = schedule(aligned).passes
    return guarded_loads(aligned, p, vector, p.values)


def sums(emit: Any, a: Any, b: Any, c: Any) -> Any:
    return R.nn.relu(emit(R.concat([emit(R.add(a, b)), c], 1)))


def parts(found: GuardedLoads) -> list[tuple[int, list[str]]]:
    """Return each slot's columns and inputs."""
    return sorted((slot.columns, sorted(load.leaf[0].name for load in slot.loads)) for slot in found.slots)


@pytest.mark.parametrize(("widths", "columns"), [((16, 8), 8), ((24, 4), 4), ((6, 10), 2)])
def test_inputs_of_which_one_is_read_share_registers(widths: tuple[int, int], columns: int) -> None:
    first, second = widths
    found = loads_of(sums, ((30, first), "float16"), ((30, first), "float16"), ((30, second), "float16"))
    assert [columns_ for columns_, _ in parts(found)] == [columns, columns]
    assert sorted(len(names) for _, names in parts(found)) == [1, 2]
    assert len(found.conditions) == 1 and found.conditions[0].columns == columns


def test_conditions_inside_a_vector_are_evaluated_element_by_element() -> None:
    assert loads_of(sums, ((30, 7), "float16"), ((30, 7), "float16"), ((30, 9), "float16")) is NONE


def test_inputs_that_are_read_together_have_registers_of_their_own() -> None:
    def body(emit: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return R.nn.relu(emit(R.concat([emit(R.add(a, b)), emit(R.add(c, d))], 1)))

    found = loads_of(body, *[((30, 16), "float16")] * 4)
    assert [len(names) for _, names in parts(found)] == [2, 2]


def test_a_vector_has_16_bytes_at_most() -> None:
    found = loads_of(sums, *[((30, 16), "float32")] * 3)
    assert {columns for columns, _ in parts(found)} == {4}


@pytest.mark.parametrize(("first", "last", "inputs"), [(0, 8, 2), (16, 32, 1), (8, 24, 3)])
def test_a_known_condition_needs_no_load_of_the_other_side(first: int, last: int, inputs: int) -> None:
    def body(emit: Any, a: Any, b: Any, c: Any) -> Any:
        return R.nn.relu(emit(R.strided_slice(emit(sums(emit, a, b, c)), [1], [first], [last])))

    found = loads_of(body, *[((30, 16), "float16")] * 3)
    assert len({name for _, each in parts(found) for name in each}) == inputs
    assert bool(found.conditions) == (inputs == 3)
