# SPDX-License-Identifier: Apache-2.0
"""Reductions whose rows interleave in memory are divided by columns, and the result is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tvm import relax
from tvm.relax import op as R

from stitch_testing.reference.graph_eval import evaluate_graph
from stitch_testing.validate import validate
from tests.graph.helpers import H200, build, check_emulated, emulated, graph, symbol
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.graph.rewrite.interleaved import divided, runs_of
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.plan.memory import traffic

F16, F32 = "float16", "float32"


def reduced(axes: list[int], shape: tuple[Any, ...], operator: Any = R.sum, dtype: str = F32) -> StitchGraph:
    return graph(build(lambda emit, x: operator(x, axes), (shape, dtype)))


@pytest.mark.parametrize(
    ("axes", "runs"),
    [
        ([1, 3], (5, 20)),
        ([3, 1], (5, 20)),
        ([0, 1, 3], (5, 20)),
        ([1, 2, 3], None),  # all elements of an image are one run
        ([1], None),  # across memory
        ([3], None),  # nothing but a run
        ([0, 2, 3], (20, 80)),
    ],
)
def test_runs_lie_between_elements_of_other_rows(axes: list[int], runs: tuple[int, int] | None) -> None:
    (op,) = reduced(axes, (2, 7, 4, 5)).reduces
    found = runs_of(op)
    if runs is None:
        assert found is None
        return
    assert found is not None
    length = np.prod([int(axis.extent) for axis in found.axes])
    assert (length, found.bytes, found.read) == (*runs, 2 * 7 * 4 * 5 * 4)


def test_what_has_no_known_runs() -> None:
    assert runs_of(reduced([1, 3], (2, symbol(), 4, 5)).reduces[0]) is None
    half = reduced([1, 3], (2, 7, 4, 5), dtype=F16)
    assert all(
        runs_of(op) is None for op in half.reduces if op.output.dtype == F16
    )  # its parts would be rounded
    assert divided(half, lambda op: None) is half
    one = reduced([1, 3], (2, 7, 1, 5))
    assert runs_of(one.reduces[0]) is None  # no other rows


@pytest.mark.parametrize("shape", [(2, 7, 4, 5), (1, 13, 3, 2), (3, 2, 2, 7), (1, 1, 3, 2)])
@pytest.mark.parametrize("operator", [R.sum, R.max, R.min, R.prod])
@pytest.mark.parametrize("axes", [[1, 3], [0, 1, 3], [0, 2, 3]])
def test_columns_are_reduced_first(operator: Any, shape: tuple[int, ...], axes: list[int]) -> None:
    op_graph = reduced(axes, shape, operator)
    made = divided(op_graph, runs_of)
    if runs_of(op_graph.reduces[0]) is None:
        assert made is op_graph
    else:
        first, second = made.reduces
        assert first.output.size == second.output.size * np.prod([int(a.extent) for a in second.reduce])
    validate(made)
    x = np.random.default_rng(0).uniform(0.5, 2, shape).astype(F32)
    (want,), (got,) = evaluate_graph(op_graph, [x]), evaluate_graph(made, [x])
    np.testing.assert_allclose(got, want, rtol=1e-5)


def group_norm(shape: tuple[int, ...], groups: int, dtype: str, then: Callable[..., Any]) -> Any:
    """Build a group norm of channels that lie last, and an operator behind it."""
    n, h, w, c = shape

    def body(emit: Any, x: Any) -> Any:
        wide = emit(R.astype(x, F32)) if dtype != F32 else x
        parts = emit(R.reshape(wide, (n, h, w, groups, c // groups)))
        centered = emit(R.subtract(parts, emit(R.mean(parts, [1, 2, 4], keepdims=True))))
        variance = emit(R.mean(emit(R.multiply(centered, centered)), [1, 2, 4], keepdims=True))
        deviation = emit(R.sqrt(emit(R.add(variance, relax.const(1e-5, F32)))))
        normed = emit(R.reshape(emit(R.divide(centered, deviation)), shape))
        scaled = emit(R.multiply(normed, relax.const(np.linspace(-1, 2, c).astype(F32))))
        return R.astype(emit(then(emit, scaled)), dtype) if dtype != F32 else then(emit, scaled)

    return build(body, (shape, dtype))


def pooled(emit: Any, x: Any) -> Any:
    padded = emit(R.nn.pad(x, [0, 0, 0, 1, 0, 1, 0, 0], pad_value=-float("inf")))
    return R.nn.max_pool2d(padded, [3, 3], [2, 2], layout="NHWC")


@pytest.mark.parametrize(
    ("shape", "groups", "dtype"),
    [
        ((2, 47, 47, 30), 15, F16),
        ((1, 1, 6553, 21), 3, F16),
        ((3, 53, 211, 2), 1, F32),  # one run for each image
        ((3, 53, 211, 4), 2, F32),
        ((1, 131, 127, 10), 2, F16),
    ],
)
def test_group_norms_of_few_channels(shape: Any, groups: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    mod = group_norm(shape, groups, dtype, lambda emit, x: R.nn.relu(x))
    check_emulated(mod, [(rng.standard_normal(shape) * 2 + 3).astype(dtype)], launches=None)


@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 47, 47, 30), 15), ((1, 3, 2185, 21), 3), ((1, 131, 127, 10), 2)]
)
def test_a_pool_behind_a_group_norm(shape: tuple[int, int, int, int], groups: int) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * 2 + 3).astype(F16)
    (got,) = emulated(group_norm(shape, groups, F16, pooled), x)
    wide = torch.tensor(x.astype("float64")).movedim(-1, 1)
    scale = torch.linspace(-1, 2, shape[-1], dtype=torch.float64)
    normed = F.pad(F.group_norm(wide, groups, scale), (0, 1, 0, 1), value=-float("inf"))
    want = F.max_pool2d(normed, 3, 2).movedim(1, -1).numpy()
    np.testing.assert_allclose(got.astype("float64"), want, rtol=2e-3, atol=2e-3)


def test_statistics_of_large_images_read_them_once() -> None:
    """In rows of positions: the columns are the channels of all groups."""
    mod = group_norm((8, 192, 192, 64), 32, F16, lambda emit, x: R.nn.relu(x))
    plan = choose_plan(graph(mod), H200)
    assert plan.grid_wide and len(plan.phases) == 3
    (sums,) = [stage for stage in plan.phases[0] if stage.slice.cross_row]
    assert sums.slice.domain.rows == 192 * 192 and len(sums.slice.cross_row) == 3
    size = 8 * 192 * 192 * 64 * 2
    assert traffic(plan).moved < 3.1 * size
    names = {op.name for stage in plan.phases[2] if stage.slice.replicated for op in stage.slice.stored}
    assert len(names) == 2  # the mean and the sum of squared deviations, not the sums


@pytest.mark.parametrize(
    ("shape", "groups", "dtype", "grid"),
    [
        ((8, 192, 192, 64), 32, F16, True),
        ((8, 192, 192, 64), 16, F16, True),
        ((8, 192, 192, 64), 8, F16, False),  # half a sector
        ((8, 192, 192, 64), 32, F32, True),
        ((8, 192, 192, 64), 16, F32, False),
        ((8, 192, 192, 64), 1, F16, False),  # whole images
        ((1, 24, 24, 64), 32, F16, False),  # the caches hold it
    ],
)
def test_runs_of_less_than_half_a_sector_are_divided(shape: Any, groups: int, dtype: str, grid: bool) -> None:
    mod = group_norm(shape, groups, dtype, lambda emit, x: R.nn.relu(x))
    assert choose_plan(graph(mod), H200).grid_wide == grid
