# SPDX-License-Identifier: Apache-2.0
"""The layout of shared memory: its bytes, and the buffers that a plan names."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from tests.graph.helpers import H200, build, graph, plan
from tvm_stitch.plan.gpu.occupancy import OPT_IN_BYTES
from tvm_stitch.plan.in_block import plan_in_block
from tvm_stitch.plan.shared_memory import shared_bytes, shared_parts
from tvm_stitch.testing.workloads import cases

F32 = "float32"


def test_shared_memory_of_partial_results() -> None:
    """Four warps a row need a partial each. A row within a warp needs none."""
    wide = plan(cases.softmax(64, 1024).build())
    assert wide.stage.mapping.threads > 32 and shared_bytes(wide) == wide.stage.mapping.block // 32 * 4
    assert shared_bytes(plan(cases.softmax(65536, 128).build())) == 0


@pytest.mark.parametrize(("columns", "more"), [(4096, 0), (5000, 8192)])
def test_the_runtime_asks_for_all_shared_memory(columns: int, more: int) -> None:
    """It does so where dynamic shared memory alone is more than every kernel may have."""

    def normalized(emit: Any, x: Any) -> Any:
        x = emit(R.permute_dims(x, [0, 2, 1]))
        return emit(R.divide(x, emit(R.sqrt(emit(R.mean(emit(R.multiply(x, x)), -1, True))))))

    kernel_plan = plan_in_block(graph(build(normalized, ((1, columns, 16384), F32))), H200)
    static, dynamic = shared_parts(kernel_plan)
    assert static > 0 and kernel_plan.shared.padding == more
    assert dynamic + more >= OPT_IN_BYTES and (dynamic < OPT_IN_BYTES) == (more > 0)
    assert shared_bytes(kernel_plan) == static + dynamic + more


def transposed(*shapes: tuple[int, int]) -> Any:
    """Return the plan of a sum of transposed inputs, less its maximum."""

    def body(emit: Any, *xs: Any) -> Any:
        y = emit(R.permute_dims(xs[0], [1, 0]))
        for x in xs[1:]:
            y = emit(R.add(y, emit(R.permute_dims(x, [1, 0]))))
        return emit(R.subtract(y, emit(R.max(y, -1, True))))

    return plan(build(body, *[(shape, F32) for shape in shapes]))


def test_padding_where_the_runtime_would_not_ask() -> None:
    """376 columns of 32 rows, and a gap behind each: less than 48 KiB, and more with the slots of an exchange."""
    static, dynamic = shared_parts(made := transposed((2979, 1024)))
    assert (static, dynamic) == (32 * 8 * 4 + 8, 32 * (376 + 1) * 4)
    assert static + dynamic > 48 * 1024 and made.shared.padding == 48 * 1024 - dynamic
    assert transposed((2049, 1024)).shared.padding == 0


def test_a_patch_takes_the_place_of_the_last() -> None:
    made = transposed((1500, 1024), (1500, 1024))
    m = made.stage.row_mapping
    assert len(m.transposed) == 2
    assert shared_parts(made)[1] == m.rows_per_block * (m.block_columns(1500) + 1) * 4
