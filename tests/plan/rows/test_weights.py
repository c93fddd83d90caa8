# SPDX-License-Identifier: Apache-2.0
"""Rows of weights: each word is loaded once, rows share warps so that no block idles, and other rows are left alone."""

from __future__ import annotations

import pytest

from stitch_testing.random.graphs import emulated_target
from tests.relax.few_rows.models import layer
from tvm_stitch import explain


def mapping_of(text: str) -> str:
    """Return the mapping of the last stage, which has the weights."""
    return [line for line in text.splitlines() if "mapping: threads a row" in line][-1]


@pytest.mark.parametrize(
    ("columns", "threads"),
    [
        (8448, 32),  # 2,112 rows of four columns each: a warp a row, one row for each of 132 * 16 warps
        (3072, 64),  # 768 rows: one round, in which a quarter of the blocks is idle, and not three full ones
        (2112, 128),  # 528 rows: four warps a row
    ],
)
def test_warps_of_a_row_leave_few_blocks_idle(columns: int, threads: int) -> None:
    report = explain(layer(1, columns, 4096, 4, "float16"), emulated_target()).verbose()
    assert f"threads a row {threads}," in mapping_of(report)


def test_a_word_of_eight_weights_is_loaded_once() -> None:
    report = explain(layer(1, 2112, 4096, 4, "float16"), emulated_target())
    (kernel,) = report.kernels
    weights = 2112 * 4096 // 2 + 2112 * 4096 // 4 * 2
    assert int(kernel.bytes_read) <= 1.02 * weights
