# SPDX-License-Identifier: Apache-2.0
"""Reduced axes are taken in the order of memory, and the result is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

from stitch_testing.reference.graph_eval import evaluate_graph
from stitch_testing.validate import validate
from tests.graph.helpers import build, check_emulated, graph, plan, symbol
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.graph.rewrite.reduced_order import in_memory_order

F32 = "float32"


def orders(op_graph: StitchGraph) -> list[list[Any]]:
    return [[a.extent for a in op.reduce] for op in op_graph.reduces]


@pytest.mark.parametrize(
    ("axes", "order"),
    [
        (None, [2, 3, 4, 5]),
        ([0, 3, 1, 2], [2, 5, 3, 4]),  # memory has them as 2, 3, 4, 5 behind the transposition
        ([3, 2, 1, 0], [5, 4, 3, 2]),
    ],
)
def test_axes_follow_memory_through_transpositions(axes: list[int] | None, order: list[int]) -> None:
    def body(emit: Any, x: Any) -> Any:
        moved = x if axes is None else emit(R.permute_dims(emit(R.exp(x)), axes))
        return R.sum(moved, [0, 1, 2, 3])

    op_graph = graph(build(body, ((2, 3, 4, 5), F32)))
    assert orders(op_graph) == [[2, 3, 4, 5]]
    validate(op_graph)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    expected = (x if axes is None else np.exp(x)).sum()
    np.testing.assert_allclose(evaluate_graph(op_graph, [x.astype(F32)])[0], expected, rtol=1e-5)
    assert [x.shape[i] for i in axes or range(4)] == order  # what the sum itself names


def group_norm(shape: tuple[int, ...], groups: int, dtype: str = F32) -> Any:
    """Build a group norm over channels that lie last, in the words of one whose channels are second."""
    n, h, w, c = shape

    def body(emit: Any, x: Any) -> Any:
        channels_second = emit(R.permute_dims(x, [0, 3, 1, 2]))
        parts = emit(R.reshape(channels_second, (n, groups, c // groups, h, w)))
        centered = emit(R.subtract(parts, emit(R.mean(parts, [2, 3, 4], keepdims=True))))
        variance = emit(R.mean(emit(R.multiply(centered, centered)), [2, 3, 4], keepdims=True))
        normed = emit(R.divide(centered, emit(R.sqrt(emit(R.add(variance, emit(R.exp(variance))))))))
        return R.permute_dims(emit(R.reshape(normed, (n, c, h, w))), [0, 2, 3, 1])

    return build(body, (shape, dtype))


def reference(x: np.ndarray, groups: int) -> np.ndarray:
    n, h, w, c = x.shape
    parts = x.astype("float64").reshape(n, h * w, groups, c // groups)
    centered = parts - parts.mean((1, 3), keepdims=True)
    variance = (centered**2).mean((1, 3), keepdims=True)
    return (centered / np.sqrt(variance + np.exp(variance))).reshape(x.shape)


@pytest.mark.parametrize("shape, groups", [((1, 8, 8, 320), 32), ((3, 5, 7, 12), 4), ((2, 4, 4, 15), 3)])
def test_a_group_norm_with_channels_last_is_one_kernel_of_rows(shape: tuple[int, ...], groups: int) -> None:
    mod = group_norm(shape, groups)
    op_graph = graph(mod)
    n, h, w, c = shape
    assert orders(op_graph) == [[h, w, c // groups]] * 2
    kernel_plan = plan(mod)
    assert not kernel_plan.grid_wide and kernel_plan.stage.alignment.domain.rows == n * groups
    x = np.random.default_rng(1).standard_normal(shape).astype(F32)
    (result,) = check_emulated(mod, [x]).outputs
    np.testing.assert_allclose(result, reference(x, groups), rtol=1e-4, atol=1e-5)


def test_vectors_are_as_long_as_a_group() -> None:
    (columns,) = plan(group_norm((1, 32, 32, 320), 32, "float16")).stage.mapping.columns.values()
    assert columns.vector == 2


def test_what_cannot_be_ordered_stays() -> None:
    n = symbol()
    op_graph = graph(build(lambda emit, x: R.sum(emit(R.permute_dims(x, [1, 0])), [0, 1]), ((4, n), F32)))
    assert in_memory_order(op_graph) is op_graph
    once = graph(build(lambda emit, x: R.sum(emit(R.permute_dims(x, [0, 2, 1])), [1]), ((4, 5, 6), F32)))
    assert in_memory_order(once) is once and orders(once) == [[6]]
