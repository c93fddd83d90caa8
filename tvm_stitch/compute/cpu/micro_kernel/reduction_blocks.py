# SPDX-License-Identifier: Apache-2.0
"""Blocks of a long reduction.

Long sums are sums of shorter ones, because the error of adding one by one grows with the number of terms. This
holds for products and convolutions. A panel's tiles are visited block by block of the reduction, and the totals of
the blocks lie in memory. With totals and sums both in registers, LLVM stores sums within the innermost loop, at
half the speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ....codegen import builder as B
from ....compat import Expr, T, tir
from ....cost.choices import Choices
from ....graph.extent import Extent, as_expr, ceildiv, product


@dataclass(frozen=True)
class ReductionBlocks:
    """The blocks of a long reduction: each has some iterations of one of its loops, with all loops inside that one.

    Attributes:
        reduction: extents of the reduction loops, outermost first.
        level: index of the loop that is divided.
        step: iterations of that loop per block.
    """

    reduction: tuple[Extent, ...]
    level: int
    step: int

    @property
    def divided(self) -> list[Extent]:
        """Extents of the loops over blocks."""
        return [*self.reduction[: self.level], ceildiv(self.reduction[self.level], self.step)]

    @property
    def count(self) -> Extent:
        """Number of blocks."""
        return product(self.divided)


def blocks_of(reduction: Sequence[Extent], choices: Choices) -> ReductionBlocks | None:
    """Return the blocks of a reduction, or None if it is short enough to be summed one by one."""
    total = product(reduction)
    if isinstance(total, int) and total <= choices.longest_sum:
        return None
    level, inner = len(reduction) - 1, 1
    while level and inner * int(reduction[level]) <= choices.sum_length:
        inner *= int(reduction[level])
        level -= 1
    extent, step = reduction[level], choices.sum_length // inner
    if isinstance(extent, int):  # blocks of equal size, as far as possible
        step = -(-extent // -(-extent // step))
    return ReductionBlocks(tuple(reduction), level, step)


@contextmanager
def last_of(blocks: ReductionBlocks, block: Expr) -> Iterator[None]:
    """Emit code under the condition that the block is the last one."""
    with T.If(tir.EQ(block, as_expr(blocks.count) - B.i64(1))), T.Then():
        yield
