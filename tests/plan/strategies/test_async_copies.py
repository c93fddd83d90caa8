# SPDX-License-Identifier: Apache-2.0
"""Some rows are staged in shared memory by cp.async, split over some number of blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tvm.relax import op as R

from tests.graph.helpers import H200, build, graph
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import GPUS, DeviceModel
from tvm_stitch.plan.gpu.mapping import RowMapping, Storage
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.plan.memory import traffic
from tvm_stitch.plan.shared_memory import shared_bytes
from tvm_stitch.plan.verify import problems

ELEMENTS = 1 << 27
BF16, F32 = "bfloat16", "float32"


def softmax(emit: Any, x: Any) -> Any:
    return emit(R.nn.softmax(emit(R.astype(x, F32))))


def rms_norm(emit: Any, x: Any, weight: Any) -> Any:
    return emit(R.nn.rms_norm(x, weight, [-1], 1e-6))


def log_sum(emit: Any, x: Any) -> Any:
    """Nothing as long as a row is written."""
    y = emit(R.astype(x, F32))
    most = emit(R.max(y, -1, True))
    return emit(R.add(most, emit(R.log(emit(R.sum(emit(R.exp(emit(R.subtract(y, most)))), -1, True))))))


def made(
    body: Callable[..., Any], columns: int, dtype: str = BF16, device: DeviceModel = H200, rows: int = 0,
    config: StitchConfig | None = None,
) -> KernelPlan:  # fmt: skip
    specs = [((rows or ELEMENTS // columns, columns), dtype), ((columns,), dtype)]
    return plan_in_block(graph(build(body, *specs[: body.__code__.co_argcount - 1])), device, config)


def mapping(*args: Any, **kwargs: Any) -> RowMapping:
    return made(*args, **kwargs).stage.row_mapping


@pytest.mark.parametrize(
    ("body", "columns", "splits", "threads"),
    [
        (softmax, 16384, 1, 256),
        (softmax, 32768, 1, 256),
        (softmax, 65536, 4, 128),
        (softmax, 131072, 8, 128),
        (softmax, 262144, 8, 256),  # of which three have room
        (rms_norm, 32768, 2, 256),  # its weight is read behind the reduction
        (rms_norm, 65536, 4, 256),
        (rms_norm, 262144, 8, 512),
        (log_sum, 4096, 1, 64),
        (log_sum, 8192, 1, 128),
        (log_sum, 32768, 1, 256),
    ],
)
def test_rows_that_are_copied(body: Callable[..., Any], columns: int, splits: int, threads: int) -> None:
    plan = made(body, columns)
    m = plan.stage.row_mapping
    assert m.async_copies and m.storage is Storage.SHARED and (m.row_splits, m.threads) == (splits, threads)
    assert 3 * (shared_bytes(plan) + H200.shared_reserved) <= H200.shared_per_sm
    moved = traffic(plan)
    assert moved.read + moved.written == moved.least
    assert problems(plan) == []


@pytest.mark.parametrize(
    ("body", "columns", "dtype"),
    [(softmax, 8192, BF16), (softmax, 24576, F32), (rms_norm, 16384, BF16), (log_sum, 2048, BF16)],
)
def test_shorter_rows_stay_in_registers(body: Callable[..., Any], columns: int, dtype: str) -> None:
    m = mapping(body, columns, dtype)
    assert m.storage is Storage.REGISTERS and not m.async_copies


@pytest.mark.parametrize("columns", [4096, 16384])
def test_rows_of_float32_are_copied_where_they_are_not_written(columns: int) -> None:
    assert mapping(log_sum, columns, F32).async_copies and not mapping(softmax, columns, F32).async_copies


@pytest.mark.parametrize("device", [GPUS["t4"], replace(H200, background_copies=False)])
def test_devices_without_the_instruction(device: DeviceModel) -> None:
    assert not mapping(softmax, 65536, device=device).async_copies


def test_without_clusters_a_row_has_one_block() -> None:
    off = StitchConfig(clusters=False)
    assert (
        mapping(softmax, 32768, config=off).async_copies
        and mapping(softmax, 16384, device=GPUS["a100"]).async_copies
    )
    alone = mapping(softmax, 65536, config=off)
    assert (alone.row_splits, alone.threads) == (1, 1024)  # there is no room for three such blocks


def test_few_rows_are_split_over_the_device() -> None:
    """Blocks that share a multiprocessor with no others hide nothing."""
    assert not mapping(softmax, 32768, rows=H200.sms).async_copies


def test_a_plan_that_keeps_what_has_no_place_is_named() -> None:
    plan = made(softmax, 65536)
    stage = replace(
        plan.stage, mapping=replace(plan.stage.row_mapping, storage=Storage.NOWHERE, async_copies=False)
    )
    assert any("nowhere" in line for line in problems(replace(plan, phases=((stage,),))))


def test_a_maximum_and_its_sum_have_partial_results_at_once() -> None:
    """They are folded behind one barrier: two words a warp, where reductions that follow each other share one."""
    plan = made(log_sum, 2048)
    m = plan.stage.row_mapping
    assert plan.stage.rescaled and m.storage is Storage.REGISTERS
    assert shared_bytes(plan) == m.block // 32 * 2 * 4
    kept = made(softmax, 2048)
    assert not kept.stage.rescaled and shared_bytes(kept) == kept.stage.row_mapping.block // 32 * 4
