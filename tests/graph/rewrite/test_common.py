# SPDX-License-Identifier: Apache-2.0
"""Equal operators become one, different ones stay, and the values are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import Spec, build, draw, graph, single
from tvm_stitch.graph.rewrite.common import merge_common
from tvm_stitch.graph.rewrite.one_pass_variance import candidates, with_one_pass_variance
from tvm_stitch.testing.graph_eval import evaluate_graph
from tvm_stitch.testing.validate import validate

F32 = "float32"
X = ((6, 20), F32)
Body = Callable[..., Any]


def same(found: Any, merged: Any, specs: Sequence[Spec]) -> None:
    validate(merged)
    arrays = draw(specs, low=0.5)
    for a, b in zip(evaluate_graph(merged, arrays), evaluate_graph(found, arrays), strict=True):
        np.testing.assert_array_equal(a, b)


def test_batch_norm_subtracts_once() -> None:
    specs = [((4, 8, 5, 5), F32)] + [((8,), F32)] * 4

    def body(emit: Any, x: Any, *rest: Any) -> Any:
        made = emit(R.nn.batch_norm(x, *rest, axis=1, training=True))
        return [made[0], made[1], made[2]]

    found = single(body, *specs)
    merged = merge_common(found)
    subtractions = [
        [op.name for op in g.operators if op.name.startswith("T_subtract")] for g in (found, merged)
    ]
    assert [len(s) for s in subtractions] == [3, 1]
    same(found, merged, specs)
    assert len(candidates(merged)) == 1
    same(with_one_pass_variance(found), merge_common(with_one_pass_variance(found)), specs)


def test_chains_and_reductions() -> None:
    def body(emit: Any, x: Any) -> Any:
        parts = [emit(R.max(emit(R.exp(emit(R.multiply(x, x)))), -1, True)) for _ in range(2)]
        return [R.add(emit(R.subtract(x, parts[0])), parts[1])]

    found = graph(build(body, X))
    merged = merge_common(found)
    assert len(found.operators) == 8 and len(merged.operators) == 5
    same(found, merged, [X])


DIFFERENT: dict[str, Body] = {
    "constants": lambda emit, x: [emit(R.add(x, relax.const(v, F32))) for v in (1.0, 2.0)],
    "operators": lambda emit, x: [emit(R.exp(x)), emit(R.tanh(x))],
    "combiners": lambda emit, x: [emit(R.max(x, 1, True)), emit(R.min(x, 1, True))],
    "axes": lambda emit, x: [emit(R.flip(x, 0)), emit(R.flip(x, 1))],
    "operands": lambda emit, x: (lambda y: [emit(R.subtract(x, y)), emit(R.subtract(y, x))])(emit(R.exp(x))),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_operators_stay(name: str) -> None:
    def body(emit: Any, x: Any) -> Any:
        a, b = DIFFERENT[name](emit, x)
        return [R.multiply(a, b)]

    found = graph(build(body, X))
    assert merge_common(found) is found


def test_outputs_stay() -> None:
    """A value that is returned twice is written twice; what only repeats it reads it."""

    def body(emit: Any, x: Any) -> Any:
        first, second = emit(R.exp(x)), emit(R.exp(x))
        return [first, second, R.add(emit(R.exp(x)), x)]

    found = graph(build(body, X))
    merged = merge_common(found)
    assert len(merged.outputs) == len(set(merged.outputs)) == 3
    assert len(found.operators) == 4 and len(merged.operators) == 3
    same(found, merged, [X])
