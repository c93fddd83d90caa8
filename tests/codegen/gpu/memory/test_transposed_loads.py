# SPDX-License-Identifier: Apache-2.0
"""Inputs that are read across memory: kernels that turn patches of them are right, and read neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from tests.choices import change_choices
from tests.graph.helpers import build
from tvm_stitch.plan.gpu.occupancy import OPT_IN_BYTES
from tvm_stitch.plan.shared_memory import shared_parts
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING

TARGET = emulated_target()
TOLERANCE = {"float32": (2e-5, 2e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2), "int8": (0.0, 0.0)}


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs are turned too."""
    change_choices(monkeypatch, transposed_bytes=0)


def turned(emit: Any, x: Any) -> Any:
    axes = [*range(len(x.ty.shape) - 2), len(x.ty.shape) - 1, len(x.ty.shape) - 2]
    return emit(R.permute_dims(x, axes))


def alone(emit: Any, x: Any) -> Any:
    return turned(emit, x)


def between(emit: Any, x: Any) -> Any:
    """Put light operators before and behind it."""
    return emit(R.abs(emit(R.negative(turned(emit, emit(R.add(x, x)))))))


def layer_norm(emit: Any, x: Any) -> Any:
    y = turned(emit, x)
    gamma = emit(R.ones((int(y.ty.shape[-1]),), "float32"))
    return emit(R.nn.layer_norm(y, gamma, gamma, axes=[-1]))


def softmax(emit: Any, x: Any) -> Any:
    return emit(R.nn.softmax(turned(emit, x)))


def to_channels_last(emit: Any, x: Any) -> Any:
    return emit(R.permute_dims(x, [0, 2, 3, 1]))


def checked(body: Callable[..., Any], *specs: Any) -> Any:
    """Return the mapping of the one kernel, and check its results."""
    mod = build(body, *specs)
    rng = np.random.default_rng()
    inputs = [(4 * rng.standard_normal(shape)).astype(np.dtype(dtype)) for shape, dtype in specs]
    recorder = Recorder()
    run = run_cuda(
        mod, inputs, target=TARGET, relax_pipeline=pipeline(TARGET, None, recorder), tir_pipeline=LOWERING
    ).check()
    assert len(run.launches) == 1
    assert mismatches(list(run.outputs), evaluate(mod, inputs), TOLERANCE) == []
    (plan,) = recorder.plans.values()
    return plan.stage.row_mapping


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("shape", [(64, 64), (3, 20, 33), (2, 65, 47), (129, 33), (1, 200, 40)], ids=str)
def test_alone(shape: tuple[int, ...], dtype: str) -> None:
    mapping = checked(alone, (shape, dtype))
    assert [tensor.name for tensor, _ in mapping.transposed] == ["x0"]


@pytest.mark.parametrize("shape", [(64, 64), (3, 20, 33), (2, 65, 47)], ids=str)
@pytest.mark.parametrize("body", [between, layer_norm, softmax])
def test_with_others(body: Callable[..., Any], shape: tuple[int, ...]) -> None:
    assert len(checked(body, (shape, "float32")).transposed) == 1


@pytest.mark.parametrize("body", [layer_norm, softmax])
@pytest.mark.parametrize("splits", [2, 4, 8])
@pytest.mark.parametrize("shape", [(256, 64), (3, 250, 33), (131, 47)], ids=str)
def test_clusters_share_rows(
    shape: tuple[int, ...], splits: int, body: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row of a block has slots of its own, also where the last rows and columns are not there."""
    change_choices(monkeypatch, transposed_line_bytes=1 << 20)  # no whole rows are good enough
    change_choices(monkeypatch, transposed_splits=(splits,))
    mapping = checked(body, (shape, "float32"))
    assert (len(mapping.transposed), mapping.row_splits, mapping.rows_per_block) == (1, splits, 32)


@pytest.mark.parametrize("inputs", [1, 2])
def test_the_runtime_asks_for_all_shared_memory(inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unused values of it are there too, also where one patch takes another's place."""

    def body(emit: Any, *xs: Any) -> Any:
        y = turned(emit, xs[0])
        for x in xs[1:]:
            y = emit(R.maximum(y, turned(emit, x)))
        return emit(R.subtract(y, emit(R.max(y, -1, True))))

    change_choices(monkeypatch, transposed_line_bytes=1 << 20)
    change_choices(monkeypatch, transposed_splits=(8,))
    change_choices(monkeypatch, tile_registers=200)
    change_choices(monkeypatch, transposed_resident=(1,))
    mod = build(body, *[((2979, 32), "float32")] * inputs)
    recorder = Recorder()
    values = [np.random.default_rng(i).standard_normal((2979, 32)).astype("float32") for i in range(inputs)]
    run = run_cuda(
        mod, values, target=TARGET, relax_pipeline=pipeline(TARGET, None, recorder), tir_pipeline=LOWERING
    ).check()
    assert mismatches(list(run.outputs), evaluate(mod, values), TOLERANCE) == []
    (plan,) = recorder.plans.values()
    static, dynamic = shared_parts(plan)
    assert len(plan.stage.row_mapping.transposed) == inputs
    assert static + dynamic > OPT_IN_BYTES > dynamic
    assert run.launches[0].shared_bytes == dynamic + plan.shared.padding == OPT_IN_BYTES


def test_rows_too_long_for_one_block() -> None:
    """Blocks of a cluster share them, and fewer rows share a block, down to those of a sector."""
    found = [checked(layer_norm, ((columns, 32), "float32")) for columns in (256, 1024, 2048, 8000)]
    assert all(m.transposed for m in found)
    assert [(m.rows_per_block, m.row_splits) for m in found] == [(16, 1), (16, 1), (32, 4), (16, 8)]


def test_channels_last() -> None:
    assert checked(to_channels_last, ((2, 24, 7, 9), "float32")).transposed


def to_channels_first(emit: Any, x: Any) -> Any:
    return emit(R.permute_dims(x, [0, 3, 1, 2]))


@pytest.mark.parametrize("shape", [(2, 7, 9, 24), (1, 8, 8, 40), (3, 5, 5, 33), (4, 1, 17, 12)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_channels_first(shape: tuple[int, ...], dtype: str) -> None:
    """Rows are images' channels, columns all their places."""
    mapping = checked(to_channels_first, (shape, dtype))
    assert (
        mapping.transposed
        and mapping.row_splits * mapping.block_columns(shape[1] * shape[2]) >= shape[1] * shape[2]
    )


@pytest.mark.parametrize("shape", [(2, 7, 9, 24), (3, 6, 8, 33)], ids=str)
def test_channels_first_scaled_and_added(shape: tuple[int, ...]) -> None:
    """As a residual branch whose products have channels last."""

    def body(emit: Any, x: Any, scale: Any, y: Any) -> Any:
        return emit(R.add(emit(R.multiply(to_channels_first(emit, x), scale)), y))

    images, height, width, channels = shape
    specs = (
        (shape, "float32"),
        ((channels, 1, 1), "float32"),
        ((images, channels, height, width), "float32"),
    )
    assert [tensor.name for tensor, _ in checked(body, *specs).transposed] == ["x0"]


def test_one_input_of_two_is_turned() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return emit(R.add(turned(emit, x), y))

    mapping = checked(body, ((40, 36), "float32"), ((36, 40), "float32"))
    assert [tensor.name for tensor, _ in mapping.transposed] == ["x0"]


def test_both_inputs_are_turned() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return emit(R.add(turned(emit, x), turned(emit, y)))

    assert len(checked(body, ((40, 36), "float32"), ((40, 36), "float32")).transposed) == 2


def inner_axis_stays(emit: Any, x: Any) -> Any:
    return emit(R.permute_dims(x, [1, 0, 2]))


def few_columns(emit: Any, x: Any) -> Any:
    return turned(emit, x)


@pytest.mark.parametrize(("body", "shape"), [(inner_axis_stays, (9, 40, 64)), (few_columns, (3, 4000))])
def test_others_are_read_as_they_lie(body: Callable[..., Any], shape: tuple[int, ...]) -> None:
    assert not checked(body, (shape, "float32")).transposed


def test_small_inputs_stay_in_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    change_choices(monkeypatch, transposed_bytes=1 << 20)
    assert not checked(alone, ((64, 64), "float32")).transposed
