# SPDX-License-Identifier: Apache-2.0
"""StitchGraph: what a fused function computes, as operators, tensors and index maps (knows neither Relax nor Relay)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ir import Access, Axis, Dependency, OpClass, Operator, StitchGraph, Tensor
    from .reader import Unreadable, read

__all__ = [
    "Access",
    "Axis",
    "Dependency",
    "OpClass",
    "Operator",
    "StitchGraph",
    "Tensor",
    "Unreadable",
    "read",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that modules that only need element types load without TVM."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "reader" if name in ("Unreadable", "read") else "ir"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
