# SPDX-License-Identifier: Apache-2.0
"""The CUDA C of this package's kernels, which their calls carry."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ELEMENT_TYPES = {"float16": "half", "bfloat16": "__nv_bfloat16", "float32": "float"}
"""Element types in CUDA C."""


@cache
def sources(*names: str) -> str:
    """Return the texts of device functions. Each is compiled once, even if several kernels carry it."""
    return "".join((Path(__file__).parent / "native" / f"{name}.cuh").read_text() for name in names)
