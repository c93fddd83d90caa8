# SPDX-License-Identifier: Apache-2.0
"""One sweep takes all reductions of some rows."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm.relax import op as R

from tests.graph.helpers import H200, build, plan, symbol
from tvm_stitch.plan.gpu.mapping import CrossBlockReduction, Storage
from tvm_stitch.plan.memory import traffic
from tvm_stitch.plan.verify import problems


def log_sum(rows: Any, columns: int, dtype: str = "bfloat16") -> tvm.IRModule:
    def body(emit: Any, x: Any) -> list[Any]:
        wide = emit(R.astype(x, "float32"))
        top = emit(R.max(wide, axis=[-1], keepdims=True))
        return [R.sum(emit(R.exp(emit(R.subtract(wide, top)))), axis=[-1])]

    return build(body, ((rows, columns), dtype))


def storage(mod: tvm.IRModule) -> Storage:
    kernel_plan = plan(mod, H200)
    assert problems(kernel_plan) == []
    return kernel_plan.stage.row_mapping.storage


@pytest.mark.parametrize(
    ("columns", "dtype"), [(65_536, "bfloat16"), (40_000, "float16"), (16_386, "float32")]
)
def test_long_rows_are_swept_once(columns: int, dtype: str) -> None:
    kernel_plan = plan(log_sum(1024, columns, dtype), H200)
    assert problems(kernel_plan) == []
    m = kernel_plan.stage.row_mapping
    assert m.storage is Storage.STEPS and m.row_splits == 1 and m.exchange is CrossBlockReduction.NONE
    assert traffic(kernel_plan).moved == traffic(kernel_plan).least


def test_shorter_rows_stay_in_shared_memory() -> None:
    assert storage(log_sum(4096, 32_768)) is Storage.SHARED


def test_few_rows_are_shared_by_blocks() -> None:
    assert storage(log_sum(H200.sms - 1, 65_536)) is not Storage.STEPS


def test_rows_that_are_written_are_kept() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        return [R.nn.softmax(x)]

    assert storage(build(body, ((1024, 65_536), "bfloat16"))) is Storage.SHARED


def test_sums_of_other_forms_wait_for_the_maximum() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        top = emit(R.max(x, axis=[-1], keepdims=True))
        return [R.sum(emit(R.abs(emit(R.subtract(x, top)))), axis=[-1])]

    assert storage(build(body, ((1024, 65_536), "float32"))) is not Storage.STEPS


def test_rows_of_unknown_number() -> None:
    assert storage(log_sum(symbol("n"), 65_536)) is not Storage.STEPS


def test_rows_of_several_inputs_have_more_registers() -> None:
    def body(emit: Any, x: Any, *others: Any) -> list[Any]:
        top = emit(R.max(x, axis=[-1], keepdims=True))
        e = emit(R.exp(emit(R.subtract(x, top))))
        for other in others:
            e = emit(R.multiply(e, other))
        return [R.sum(e, axis=[-1])]

    found = [plan(build(body, *[((1024, 65_536), "float32")] * n), H200).stage.row_mapping for n in (1, 2, 4)]
    assert [m.storage for m in found] == [Storage.STEPS] * 3
    assert [(m.of(65_536).chunks, m.blocks_per_sm) for m in found] == [(2, 6), (1, 6), (1, 3)]
