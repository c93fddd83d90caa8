# SPDX-License-Identifier: Apache-2.0
"""Loads under a cache policy bring the same elements as others, of every dtype and in pieces of every size."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from tests.choices import change_choices
from tests.codegen.gpu.emulated import TOLERANCE, checked

HINT = "L2__cache_hint"


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel overflows the second-level cache."""
    change_choices(monkeypatch, caches_filled=0)


def norm(emit: Any, x: Any, w: Any) -> Any:
    return emit(R.nn.rms_norm(x, w, axes=[-1]))


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("columns", [776, 998, 997, 4096, 40_000])
def test_rows_in_registers_and_in_shared_memory(columns: int, dtype: str) -> None:
    source = checked(norm, TOLERANCE, ((3, columns), dtype), ((columns,), dtype))
    assert (HINT in source) == (columns % 2 == 0 or dtype == "float32")


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "float64"])
def test_other_element_sizes(dtype: str) -> None:
    def twice(emit: Any, x: Any) -> Any:
        return emit(R.add(x, x))

    assert HINT in checked(twice, TOLERANCE, ((1024, 1024), dtype))


def test_the_cache_decides_where_it_holds_all() -> None:
    assert HINT not in checked(norm, TOLERANCE, ((3, 4096), "float32"), ((4096,), "float32"))
