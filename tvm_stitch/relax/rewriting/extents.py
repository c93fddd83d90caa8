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
    if least > 0:
        require_at_least(builder, extent, least)


def require_at_least(builder: relax.BlockBuilder, number: Any, least: int) -> None:
    """Emit the same check for a number that may be negative, such as a difference of extents."""
    if isinstance(number, int) or compat.int_value(number) is not None:
        return
    needed = tirx.max(number, tirx.IntImm("int64", least))
    # Without a variable, TVM does not compute a number that only this shape has.
    shape = builder.emit(relax.ShapeExpr([number]))
    builder.match_cast(shape, relax.ShapeType([needed]))
