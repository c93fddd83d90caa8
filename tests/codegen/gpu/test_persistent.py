# SPDX-License-Identifier: Apache-2.0
"""Clusters that stay for several groups of rows: kernels that copy the next patches meanwhile are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import relax
from tvm.relax import op as R

from tests.choices import change_choices
from tests.codegen.gpu.memory.test_transposed_loads import checked, layer_norm, softmax, turned
from tvm_stitch.device import DeviceModel


@pytest.fixture(autouse=True)
def few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clusters take small inputs in turn."""
    change_choices(monkeypatch, transposed_bytes=0)
    change_choices(monkeypatch, persistent_groups=1)
    change_choices(monkeypatch, persistent_columns=1)
    monkeypatch.setattr(DeviceModel, "clusters_at_once", lambda *_: 2)


def affine(emit: Any, x: Any) -> Any:
    """Normalise the rows. Scales and offsets differ, and no two of them are alike in a row."""
    y = turned(emit, x)
    columns = int(y.ty.shape[-1])
    gamma = relax.const([1 + i / columns for i in range(columns)], "float32")
    beta = relax.const([i % 7 - 3 for i in range(columns)], "float32")
    return emit(R.nn.layer_norm(y, gamma, beta, axes=[-1]))


def half_norm(emit: Any, x: Any) -> Any:
    y = emit(R.astype(turned(emit, x), "float32"))
    gamma = emit(R.ones((int(y.ty.shape[-1]),), "float32"))
    return emit(R.astype(emit(R.nn.layer_norm(y, gamma, gamma, axes=[-1])), "float16"))


def one_sum(emit: Any, x: Any) -> Any:
    """Subtract the mean, with one exchange a turn."""
    y = turned(emit, x)
    return emit(R.subtract(y, emit(R.mean(y, -1, True))))


def last_reduced(emit: Any, x: Any) -> Any:
    """Nothing but row results is stored: no stores among which copies could begin."""
    return emit(R.sum(emit(R.exp(turned(emit, x))), -1))


def two_inputs(emit: Any, x: Any, y: Any) -> Any:
    return emit(R.nn.softmax(emit(R.add(turned(emit, x), turned(emit, y)))))


@pytest.mark.parametrize("splits", [2, 4, 8])
@pytest.mark.parametrize(
    "shape", [(256, 96), (2, 512, 160), (3, 256, 96), (1, 256, 132), (250, 140)], ids=str
)
@pytest.mark.parametrize("body", [layer_norm, softmax, affine, one_sum])
def test_persistent_rows(
    body: Callable[..., Any], shape: tuple[int, ...], splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the last group is not full, or the last columns are not there."""
    change_choices(monkeypatch, transposed_splits=(splits,))
    mapping = checked(body, (shape, "float32"))
    assert mapping.workers == 2 and mapping.row_splits == splits and mapping.tasks > 1


@pytest.mark.parametrize(("splits", "columns"), [(2, 131), (2, 257), (4, 518), (8, 61)])
@pytest.mark.parametrize("body", [softmax, affine])
def test_copies_are_not_all_of_own_columns(
    body: Callable[..., Any], splits: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads copy four columns' pieces at a time, and have an odd number of vectors of one or two columns."""
    change_choices(monkeypatch, transposed_splits=(splits,))
    mapping = checked(body, ((columns, 160), "float32"))
    ((_, spread),) = mapping.columns.items()
    assert mapping.workers == 2 and spread.chunks * spread.vector % 4


def widened(emit: Any, x: Any) -> Any:
    return softmax(emit, emit(R.astype(x, "float32")))


@pytest.mark.parametrize("columns", [192, 132])
def test_copies_of_half_types_are_not_all_of_own_columns(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight columns' pieces at a time, also where segments end with the last column."""
    change_choices(monkeypatch, transposed_splits=(2,))
    mapping = checked(widened, ((columns, 160), "float16"))
    ((_, spread),) = mapping.columns.items()
    assert mapping.workers == 2 and spread.chunks * spread.vector % 8 == 4


@pytest.mark.parametrize("shape", [(2, 512, 160), (3, 256, 96), (1, 256, 132)], ids=str)
def test_row_results_alone(shape: tuple[int, ...]) -> None:
    assert checked(last_reduced, (shape, "float32")).workers == 2


@pytest.mark.parametrize("shape", [(256, 96), (512, 160), (384, 136)], ids=str)
def test_half_types(shape: tuple[int, ...]) -> None:
    assert checked(half_norm, (shape, "float16")).workers == 2


def test_several_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    change_choices(monkeypatch, transposed_splits=(4,))
    mapping = checked(two_inputs, ((256, 160), "float32"), ((256, 160), "float32"))
    assert mapping.workers == 2 and len(mapping.transposed) == 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "bool", "int8"])
def test_vectors_beside_patches(dtype: str) -> None:
    """Vectors are of eight elements, and instructions move two of float64 at most."""

    def body(emit: Any, x: Any, other: Any) -> Any:
        y = one_sum(emit, emit(R.astype(x, "float64")))
        scale = other if dtype == "float64" else emit(R.astype(other, "float64"))
        return emit(R.astype(emit(R.multiply(y, scale)), "float16"))

    assert checked(body, ((200, 136), "float16"), ((200,), dtype)).workers == 2


def test_one_group_each() -> None:
    """There is no next group."""
    mapping = checked(layer_norm, ((256, 64), "float32"))
    assert mapping.workers == 2 and mapping.tasks == 1
