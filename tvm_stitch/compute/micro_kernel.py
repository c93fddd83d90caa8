# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of products on a CPU: a tile of sums that stay in registers over the whole depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from .. import compat
from ..codegen import builder as B
from ..codegen.cpu_base import times
from ..codegen.cpu_columns import count_of
from ..compat import Buffer, Expr
from ..graph.extent import Extent, ceildiv, product
from .tiles import DEPTH_OF_SUM, LONG_DEPTH

Term = Callable[[int, list[Expr], Expr], Expr]
"""What a row's sum gets in a column at a place of the depth."""


def emit_sums(
    rows: int, width: int, lanes: int, depth: Sequence[Extent], term: Term, unrolled: int = 0
) -> list[Buffer]:
    """``rows`` x ``width`` sums over the loops of ``depth``, each row in a buffer.

    Long sums are sums of shorter ones: the error of adding one by one grows with their number.

    Args:
        rows, width: of the tile; ``width`` is a multiple of ``lanes``, or less.
        lanes: of a vector.
        depth: extents of the loops, outermost first.
        term: a product, at a row of the tile, the loops' variables, and a column of the tile.
        unrolled: how many of the innermost loops are unrolled, of a depth that is not long.
    """
    tile = _Tile(rows, width, min(lanes, width))
    total = product(depth)
    sums = tile.buffers("sums")
    if isinstance(total, int) and total <= LONG_DEPTH:
        tile.clear(sums)
        kinds = ["serial"] * (len(depth) - unrolled) + ["unroll"] * unrolled
        with _loops(zip(kinds, depth)) as at:
            tile.each(sums, lambda i, c: compat.load(sums[i], [c]) + term(i, at, c))
        return sums
    totals = tile.buffers("totals")
    tile.clear(totals)
    *outer, last = depth
    with _loops([("serial", e) for e in outer]) as at:
        with times("serial", ceildiv(last, DEPTH_OF_SUM), "block") as block:
            first = block * B.i64(DEPTH_OF_SUM)
            tile.clear(sums)
            with times("serial", count_of(last, DEPTH_OF_SUM, first), "k") as k:
                place = [*at, first + k]
                tile.each(sums, lambda i, c: compat.load(sums[i], [c]) + term(i, place, c))
            tile.each(totals, lambda i, c: compat.load(totals[i], [c]) + compat.load(sums[i], [c]))
    return totals


class _Tile:
    """Rows of a tile, a buffer for each: TVM asks the runtime for memory where one has 1 KiB."""

    def __init__(self, rows: int, width: int, lanes: int):
        self.rows, self.width, self.lanes = rows, width, lanes

    def buffers(self, name: str) -> list[Buffer]:
        """Buffers that LLVM makes registers of."""
        return [B.stack([self.width], "float32", f"{name}{i}") for i in range(self.rows)]

    def clear(self, buffers: Sequence[Buffer]) -> None:
        """Store zeros everywhere."""
        self.each(buffers, lambda i, c: compat.const(0.0, "float32"))

    def each(self, buffers: Sequence[Buffer], value: Callable[[int, Expr], Expr]) -> None:
        """Store the value of a row and a column everywhere."""
        for i, row in enumerate(buffers):
            with B.loop("unroll", self.width // self.lanes, "j") as j:
                with B.loop("vectorized", self.lanes, "v") as v:
                    column = j * B.i64(self.lanes) + v
                    B.store(row, value(i, column), [column])


@contextmanager
def _loops(loops: Iterable[tuple[str, Extent]]) -> Iterator[list[Expr]]:
    """Nested loops, of a kind and an extent each."""
    with ExitStack() as stack:
        yield [stack.enter_context(times(kind, extent, f"k{i}")) for i, (kind, extent) in enumerate(loops)]
