# SPDX-License-Identifier: Apache-2.0
"""Values below conditions are written at each read only while their expressions are short."""

from __future__ import annotations

import pytest

from tests.choices import CHOICES
from tests.graph.helpers import running_maximum
from tests.plan.iteration.test_alignment import composed
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.plan.iteration.bounds.inlined import InlinedSizes
from tvm_stitch.plan.iteration.domain import At, Point
from tvm_stitch.plan.iteration.gather import Misaligned

F32 = "float32"
POINT = Point(At.INDEX, 64, ())


def add_all(sizes: InlinedSizes, found: StitchGraph) -> None:
    for op in found.operators:
        sizes.add(op, POINT, [POINT] * len(op.accesses))


def test_each_read_counts() -> None:
    """Each step compares two values and chooses one: four reads of the step before, with concatenations."""
    found = composed(running_maximum(1, 2, 4), ((2, 16), F32))
    add_all(InlinedSizes(50), found)
    with pytest.raises(Misaligned, match="reads 50 operations below a condition"):
        add_all(InlinedSizes(49), found)


def test_bound_values_and_values_of_other_kernels_do_not_count() -> None:
    found = composed(running_maximum(1, 2, 4), ((2, 16), F32))
    for point in (None, Point(At.COLUMN, 16, ())):
        sizes = InlinedSizes(0)
        for op in found.operators:
            sizes.add(op, POINT, [point] * len(op.accesses))


def test_the_bound_is_a_choice() -> None:
    assert CHOICES.inlined_operators >= 16
