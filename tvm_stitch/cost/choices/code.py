# SPDX-License-Identifier: Apache-2.0
"""Constants of code generation: what is written out, shared or put into a loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CodeChoices:
    """Constants of code generation: what is written out, shared or put into a loop."""

    # -- code generation -----------------------------------------------------------------------------------------------
    partials_in_order: int = 8
    """Partial results of other warps or blocks up to which every thread folds them one after the other."""
    bound_weight: int = 12
    """Nodes of a light expression from which on it is computed once, into a cell, and not wherever it is used."""
    strided_segments_together: int = 16
    """Segments whose strided accesses one task makes together: their neighbours share cache lines."""
    columns_together: int = 8
    """Columns that a piece of rows takes in one go, so that its accumulators stay in registers meanwhile."""
