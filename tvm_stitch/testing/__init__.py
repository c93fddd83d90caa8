# SPDX-License-Identifier: Apache-2.0
"""Tools for testing stitched code."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """The emulator's entry points on first use (its runtime is compiled then)."""
    if name in ("run_cuda", "run_kernel"):
        from . import emulator

        return getattr(emulator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
