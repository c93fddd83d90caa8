# SPDX-License-Identifier: Apache-2.0
"""StitchGraph: what a fused function computes, as operators, tensors and index maps (knows neither Relax nor Relay)."""

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
