# SPDX-License-Identifier: Apache-2.0
"""Repairs of TVMs with Relay for scheduled PrimFuncs, one fault a file. Apache TVM 0.27 has none of these faults."""

from __future__ import annotations

from typing import Any

from ...compat.capabilities import ALIGNS_PARAMETERS, SIMPLIFIES_BOUNDS
from ...compat.expressions import Expr
from .element_alignment import element_aligned
from .lower_bounds import hidden_lower_bounds
from .strict_bounds import closed_bounds, with_closed_bounds


def repaired(func: Any) -> Any:
    """Return the scheduled PrimFunc with conditions from which TVM's simplifier draws no false conclusions."""
    return func if SIMPLIFIES_BOUNDS else hidden_lower_bounds(closed_bounds(func))


def repaired_on_cpu(func: Any) -> Any:
    """Return a CPU's scheduled PrimFunc with arguments aligned to their elements, as TVM's AOT executor passes them."""
    return func if ALIGNS_PARAMETERS else element_aligned(func)


def simplifiable(e: Expr) -> Expr:
    """Return an expression in a form of which TVM's simplifier draws no false conclusions."""
    return e if SIMPLIFIES_BOUNDS else with_closed_bounds(e)
