# SPDX-License-Identifier: Apache-2.0
"""Factors as they are multiplied: widened one by one, or kept for an instruction that multiplies groups of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ... import compat
from ...codegen.evaluator import convert
from ...compat import Expr
from .amx.instruction import TileInstruction
from .dot_instruction import BITS, DotInstruction, bits


def widened(value: Expr, dtype: str) -> Expr:
    """Return an element as the float32 or int32 in which it is multiplied."""
    if compat.kind(value) in ("FloatImm", "IntImm"):
        return compat.const((float if dtype == "float32" else int)(value.value), dtype)
    return convert(value, dtype)


@dataclass(frozen=True)
class Kept:
    """The form in which a copy keeps elements for multiplication: widened, or in whole groups of an instruction.

    Attributes:
        group: neighbours of a row that one instruction multiplies. The last group is padded with zeros.
        dtype: type of the copy.
        reads: type of elements that need no copy.
        stored: converts an element for the copy.
    """

    group: int
    dtype: str
    reads: str
    stored: Callable[[Expr], Expr]

    @staticmethod
    def by(instruction: DotInstruction | TileInstruction | None, summed: str) -> Kept:
        """Return the form for an instruction, or for single products that are summed in ``summed``."""
        if instruction is None:
            return Kept(1, summed, summed, lambda value: widened(value, summed))
        left = instruction.left
        stored = bits if left == BITS else lambda value: widened(value, left)
        group = instruction.depth if isinstance(instruction, TileInstruction) else instruction.group
        return Kept(group, left, instruction.reads, stored)

    def filled(self, extent: int) -> int:
        """Return an extent rounded up to whole groups."""
        return -(-extent // self.group) * self.group
