# SPDX-License-Identifier: Apache-2.0
"""The CUDA of a product on matrix units: vector loads, and one function for all products of a form."""

from __future__ import annotations

import re

from tests.graph.helpers import cuda_source
from tests.plan.rows.packed import FORMS, product
from tests.relax.few_rows import models


def calls(name: str, group: int, dtype: str) -> tuple[int, int, int]:
    """Return how often a product's kernel loads 16 bytes, copies 16 bytes, and loads 4 bytes."""
    source = cuda_source(product(FORMS[name], 1, 64, 1024, group, dtype)).split('extern "C" __global__')[-1]
    early, copied, pairs = (
        len(re.findall(rf"{call}\(", source)) for call in ("load_early<16>", "copy_weights", "load_early<4>")
    )
    return early, copied, pairs


def test_a_lane_copies_sixteen_bytes_and_loads_pairs_of_scales() -> None:
    """Of two rows, which have one step. Scales are loaded for this step and for the next one."""
    assert calls("4 bits of 32", 32, "bfloat16") == (0, 2, 4)


def test_a_lane_without_a_ring_loads_sixteen_bytes() -> None:
    early, copied, _ = calls("4 bits of 32 with zeros", 64, "float16")
    assert early > 0 == copied


def test_products_of_a_kernel_share_their_functions() -> None:
    source = cuda_source(models.layer(1, 128, 256, 4, "float16", True, group=32))
    assert len(set(re.findall(r"tvm_stitch_add_\w+", source))) == 1


def test_zero_points_are_part_of_the_function() -> None:
    for name, text in (
        ("4 bits of 32", "4_false_7_false_1"),
        ("4 bits of 32 with zeros", "4_false_0_true_1"),
    ):
        assert f"tvm_stitch_add_float16_{text}" in cuda_source(
            product(FORMS[name], 1, 64, 1024, 64, "float16")
        )
