# SPDX-License-Identifier: Apache-2.0
"""Dominant candidates: what is placed, and what says how long rows are where nothing is reduced."""

from __future__ import annotations

from typing import Any

from tvm.relax import op as R

from tests.graph.helpers import build, graph
from tvm_stitch.plan.dominants import broadcast_sizes, roots

F32 = "float32"


def test_reductions_and_outputs_are_placed_producers_first() -> None:
    def body(emit: Any, x: Any) -> Any:
        highest = emit(R.max(x, -1, True))
        shifted = emit(R.exp(emit(R.subtract(x, highest))))
        return [shifted, emit(R.sum(shifted, -1)), emit(R.negative(highest))]

    found = graph(build(body, ((6, 20), F32)))
    placed = list(roots(found))
    assert [op.is_reduce for op in placed] == [True, False, True, False]
    assert {op.output for op in placed} >= set(found.outputs)
    assert placed == [op for op in found.operators if op in placed]


def test_heavy_values_that_are_broadcast_along_rows_say_how_long_rows_are() -> None:
    def body(emit: Any, light: Any, heavy: Any, scale: Any, x: Any) -> Any:
        wide = emit(R.multiply(emit(R.add(light, light)), x))
        shifted = emit(R.add(emit(R.exp(heavy)), heavy))  # light itself, of something heavy
        return [R.multiply(emit(R.add(emit(R.exp(scale)), x)), emit(R.multiply(shifted, wide)))]

    found = graph(build(body, ((4, 1, 1), F32), ((4, 3, 1), F32), ((5,), F32), ((4, 3, 5), F32)))
    assert broadcast_sizes(found) == [12]
