# SPDX-License-Identifier: Apache-2.0
"""Extents that TVM's passes over Relax cannot copy."""

from __future__ import annotations

from ... import compat
from ...compat import Expr

_NOT_COPIED = ("Call", "LShift", "RShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")


def is_unusual(extent: Expr) -> bool:
    """Return True for an extent that TVM's passes over Relax do not copy: one with a call or a bitwise operator."""
    return any(compat.kind(part) in _NOT_COPIED for part in compat.parts(extent))
