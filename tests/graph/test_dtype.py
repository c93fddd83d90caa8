# SPDX-License-Identifier: Apache-2.0
"""Element types: sizes in memory and accumulation."""

import pytest

from tvm_stitch.graph.dtype import compute_dtype, exchanged_dtype, item_bytes


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("bool", 1), ("int8", 1), ("uint8", 1), ("float16", 2), ("bfloat16", 2), ("float32", 4), ("int64", 8)],
)
def test_bytes_of_an_element(dtype: str, size: int) -> None:
    assert item_bytes(dtype) == size


@pytest.mark.parametrize(
    ("dtype", "wide"), [("float16", "float32"), ("bfloat16", "float32"), ("int8", "int8")]
)
def test_half_types_are_computed_in_float32(dtype: str, wide: str) -> None:
    assert compute_dtype(dtype) == wide


def test_small_types_travel_as_words() -> None:
    assert {exchanged_dtype(d) for d in ("bool", "int8", "int16", "uint8", "uint16")} == {"int32"}
    assert exchanged_dtype("float16") == exchanged_dtype("bfloat16") == "float32"
    for dtype in ("float32", "int32", "int64", "float64"):
        assert exchanged_dtype(dtype) == dtype
