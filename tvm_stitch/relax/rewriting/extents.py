# SPDX-License-Identifier: Apache-2.0
"""Extents that TVM's passes over Relax cannot copy, and checks of extents when a model runs."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from ... import compat
from ...compat import Expr

_NOT_COPIED = ("Call", "LShift", "RShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")


def is_unusual(extent: Expr) -> bool:
    """Return True for an extent that TVM's passes over Relax do not copy: one with a call or a bitwise operator."""
    return any(compat.kind(part) in _NOT_COPIED for part in compat.parts(extent))


def require_extent(builder: relax.BlockBuilder, extent: Any, least: int) -> None:
    """Emit a check that an extent is not below ``least`` when the model runs. Extents that are numbers get none.

    The virtual machine compares the extent with ``max(extent, least)``. It raises a ``RuntimeError`` that shows both.

    Args:
        builder: gets the check as a binding.
        extent: a number, or an expression of symbols that are known at this point.
        least: the least extent.
    """
    if isinstance(extent, int) or compat.int_value(extent) is not None or least <= 0:
        return
    needed = tirx.max(extent, tirx.IntImm("int64", least))
    builder.match_cast(relax.ShapeExpr([extent]), relax.ShapeType([needed]))
