# SPDX-License-Identifier: Apache-2.0
"""Element types: their size in memory, and the type values of them are computed in."""

from __future__ import annotations

from functools import cache

HALF = ("float16", "bfloat16")
FLOATS = (*HALF, "float32", "float64")
"""Floating-point types that kernels compute with."""

MULTIPLIED = ("float32", *HALF)
"""Element types whose products are computed and added up in float32."""


BYTES = ("int8", "uint8")
"""Element types whose products are computed and added up in int32."""


def summed_dtype(dtype: str) -> str:
    """The dtype that products are added up in, where the sum is of a dtype."""
    return "int32" if dtype == "int32" else "float32"


def compute_dtype(dtype: str) -> str:
    """The dtype a value is computed and accumulated in: float32 for the half types, itself for the others."""
    return "float32" if dtype in HALF else dtype


def carried_dtype(dtype: str) -> str:
    """The dtype in which a value of a dtype travels between threads and blocks: 4 or 8 bytes."""
    found = compute_dtype(dtype)
    return found if item_bytes(found) >= 4 else "int32"


@cache
def item_bytes(dtype: str) -> int:
    """Bytes of one element in memory."""
    if dtype == "bool":
        return 1
    digits = "".join(c for c in dtype.split("x")[0] if c.isdigit())
    return max(1, int(digits) // 8)
