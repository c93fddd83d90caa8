# SPDX-License-Identifier: Apache-2.0
"""A task's copy of its rows of the left side, for rows that the micro-kernel cannot read as they lie.

Each panel reads the rows again. So they are widened once, or transposed, or filled up to whole groups.

Rows that are a power of two apart share few sets of the first-level cache, and evict each other from it. If vectors run
along the reduction, several rows are read at a time, and such rows lie a cache line further apart in the copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from .... import compat
from ....codegen import builder as B
from ....codegen.cpu.tasks import times
from ....compat import Buffer, Expr
from ....cost.choices import Choices
from ....graph.dtype import item_bytes
from ....graph.extent import as_expr
from ...contraction import Contraction
from ..amx.instruction import TileInstruction
from ..data_block import elements
from ..dot_instruction import DotInstruction
from ..factors import Kept
from ..tiles import CACHE_LINE


@dataclass(frozen=True)
class RowCopy:
    """The copy of the rows of a task.

    Attributes:
        product: the product.
        instruction: multiplies groups of elements, or tiles of them. None if single elements are multiplied.
        tile_rows: rows that the micro-kernel reads at a time.
        choices: the device's constants of choice.
    """

    product: Contraction
    instruction: DotInstruction | TileInstruction | None
    tile_rows: int
    choices: Choices

    @property
    def kept(self) -> Kept:
        """The form of the elements."""
        return Kept.by(self.instruction, self.product.summed)

    @property
    def along(self) -> bool:
        """True if an instruction reads vectors along the reduction."""
        return isinstance(self.instruction, DotInstruction) and self.instruction.along

    @property
    def stride(self) -> int:
        """Elements from row to row."""
        assert isinstance(self.product.reduction, int)
        if self.along:
            return self.product.reduction + CACHE_LINE // item_bytes(self.kept.dtype)
        return self.kept.filled(self.product.reduction)

    def is_needed(self) -> bool:
        """Return whether to copy a task's rows."""
        p, kept = self.product, self.kept
        if not isinstance(p.reduction, int) or p.reduction == 0:
            return False
        if p.left.dtype != kept.reads:
            return True
        if self.along:
            size = p.reduction * item_bytes(p.left.dtype)
            return self.tile_rows > 1 and size % self.choices.evicting_bytes == 0
        return self.instruction is not None and (p.left_transposed or self.stride > p.reduction)

    def emit(self, left: Buffer, matrix: Expr, first: Expr, count: Expr, most: int) -> Buffer:
        """Emit the copy and return its buffer. An instruction's last groups are padded with zeros.

        Args:
            left: flat view of the left side.
            matrix: index of the left side's matrix.
            first: first row of the task.
            count: rows of the task, at most ``most``.
            most: rows of the largest task.
        """
        p, stride, kept = self.product, self.stride, self.kept
        assert isinstance(p.reduction, int)
        reduction, stored, at_once = B.i64(p.reduction), kept.stored, self.choices.copied_at_once
        block = B.stack([most * stride], kept.dtype, "rows")
        if stride > p.reduction and not self.along:
            with times("serial", count, "row") as row:
                for k in range(p.reduction, stride):
                    B.store(block, compat.const(0, kept.dtype), [row * B.i64(stride) + B.i64(k)])
        if p.left_transposed:
            with times("serial", p.reduction, "k") as k, times("serial", count, "row") as row:
                at = (matrix * reduction + k) * as_expr(p.rows) + first + row
                B.store(block, stored(B.fetch(left, at)), [row * B.i64(stride) + k])
            return block
        start = (matrix * as_expr(p.rows) + first) * reduction
        if stride > p.reduction:
            with times("serial", count, "row") as row:
                begin = B.bind(start + row * reduction, "begin")
                elements(
                    reduction,
                    at_once,
                    lambda at: B.store(block, stored(B.fetch(left, begin + at)), [row * B.i64(stride) + at]),
                )
            return block
        elements(
            count * reduction, at_once, lambda at: B.store(block, stored(B.fetch(left, start + at)), [at])
        )
        return block
