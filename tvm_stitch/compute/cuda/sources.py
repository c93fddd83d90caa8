# SPDX-License-Identifier: Apache-2.0
"""The CUDA C of kernels of ours, which travels in their calls."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def sources(*names: str) -> str:
    """Return the texts of device functions, each of which is compiled once where several kernels bring it."""
    return "".join((Path(__file__).parent / "native" / f"{name}.cuh").read_text() for name in names)
