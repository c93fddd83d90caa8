# SPDX-License-Identifier: Apache-2.0
"""Element types: their size in memory, and the types in which kernels compute with them."""

from __future__ import annotations

from functools import cache

HALF = ("float16", "bfloat16")
FLOATS = (*HALF, "float32", "float64")
"""Floating-point types that kernels compute with."""

MULTIPLIED = ("float32", *HALF)
"""Element types whose products are computed and summed in float32."""


BYTES = ("int8", "uint8")
"""Element types whose products are computed and summed in int32."""


def summed_dtype(dtype: str) -> str:
    """Return the dtype in which products are summed, for a sum of the given dtype."""
    return "int32" if dtype == "int32" else "float32"


def compute_dtype(dtype: str) -> str:
    """Return the dtype in which a value is computed and accumulated: float32 for half types, else its own."""
    return "float32" if dtype in HALF else dtype


def exchanged_dtype(dtype: str) -> str:
    """Return the dtype in which threads and blocks exchange a value of ``dtype``: 4 or 8 bytes."""
    computed = compute_dtype(dtype)
    return computed if item_bytes(computed) >= 4 else "int32"


@cache
def item_bytes(dtype: str) -> int:
    """Return the bytes of one element in memory."""
    if dtype == "bool":
        return 1
    digits = "".join(c for c in dtype.split("x")[0] if c.isdigit())
    return max(1, int(digits) // 8)
