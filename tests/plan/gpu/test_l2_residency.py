# SPDX-License-Identifier: Apache-2.0
"""Inputs that the second-level cache is asked to keep longest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import H200, build, plan, symbol
from tvm_stitch.records.describe import describe

F32 = "float32"


def norm(emit: Any, x: Any, w: Any) -> list[Any]:
    return [R.nn.rms_norm(x, w, axes=[-1])]


def l2_resident(rows: Any, columns: int, device: Any = H200) -> list[str]:
    kernel_plan = plan(build(norm, ((rows, columns), F32), ((columns,), F32)), device)
    return [tensor.name for tensor, _ in kernel_plan.stage.l2_resident]


def test_what_overflows_the_cache_lasts_but_not_what_rows_share() -> None:
    assert l2_resident(16_384, 4096) == ["x0"]


@pytest.mark.parametrize("more", [0, 1])
def test_reads_and_writes_fill_the_cache_so_often(more: int) -> None:
    rows = CHOICES.caches_filled * H200.l2_bytes // (1024 * 4) - 1 + more
    assert (l2_resident(rows, 1024) == ["x0"]) == bool(more)


def test_loads_that_crowd_the_registers_keep_the_compilers_order() -> None:
    def total(emit: Any, x: Any, *others: Any) -> list[Any]:
        for other in others:
            x = emit(R.add(x, other))
        return [x]

    found = [plan(build(total, *[((16_384, 4096), F32)] * n), H200).stage.l2_resident for n in (2, 24)]
    assert [len(leaves) for leaves in found] == [2, 0]


def test_what_is_turned_is_loaded_without_a_policy() -> None:
    def turned(emit: Any, x: Any) -> list[Any]:
        return [R.permute_dims(x, [1, 0])]

    stage = plan(build(turned, ((16_384, 4096), F32)), H200).stage
    assert stage.row_mapping.transposed and stage.l2_resident == ()


def test_what_writes_little_leaves_the_cache_alone() -> None:
    def total(emit: Any, x: Any) -> list[Any]:
        return [R.sum(x, axis=[-1])]

    assert plan(build(total, ((65_536, 4096), F32)), H200).stage.l2_resident == ()


def test_sizes_that_nobody_knows_do_too() -> None:
    assert l2_resident(symbol("n"), 4096) == []


def test_devices_without_policies() -> None:
    assert l2_resident(16_384, 4096, replace(H200, cache_policies=False)) == []


def test_the_report_names_them() -> None:
    kernel_plan = plan(build(norm, ((16_384, 4096), F32), ((4096,), F32)), H200)
    assert describe("kernel", kernel_plan).mapping["evicted last from the second-level cache"] == ["x0"]
