# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of products on a CPU: a tile of sums that stay in registers over the whole depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from .. import compat
from ..codegen import builder as B
from ..codegen.cpu_base import times
from ..codegen.cpu_columns import count_of
from ..codegen.evaluator import convert
from ..compat import Buffer, Expr, tir
from ..graph.extent import Extent, as_expr, ceildiv, product
from .tiles import DEPTH_OF_SUM, DOT_COLUMNS, LONG_DEPTH

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


def wide(value: Expr) -> Expr:
    """An element as the float32 in which it is multiplied."""
    if compat.kind(value) == "FloatImm":
        return compat.const(float(value.value), "float32")
    return convert(value, "float32")


def emit_dots(
    rows: int,
    width: int,
    lanes: int,
    depth: Extent,
    left: Callable[[int, Expr], Expr],
    right: Callable[[Expr, Expr], Expr],
) -> list[Buffer]:
    """``rows`` x ``width`` sums over a depth whose elements lie behind each other in both factors.

    Vectors run along the depth, so that each sum is a vector of ``lanes`` partial sums until the end.

    Args:
        rows, width: of the tile; ``width`` is a power of two, or a multiple of ``DOT_COLUMNS``.
        lanes: of a vector.
        depth: its extent.
        left: an element, by the row of the tile and the place of the depth.
        right: an element, by the place of the depth and the column of the tile.
    """
    tile = _Tile(rows, width, 1)
    results = tile.buffers("dots")
    count = min(width, DOT_COLUMNS)
    steps = as_expr(depth) // B.i64(lanes) if not isinstance(depth, int) else depth // lanes
    with times("serial", width // count, "group") as group:
        first = group * B.i64(count)

        def term(i: int, at: list[Expr], c: Expr) -> Expr:
            k = at[0] * B.i64(lanes) + tir.floormod(c, B.i64(lanes))
            return left(i, k) * right(k, first + tir.floordiv(c, B.i64(lanes)))

        partial = emit_sums(rows, count * lanes, lanes, [steps], term)
        for i, line in enumerate(partial):
            sums = _folded(line, count, lanes)
            with B.loop("unroll", count, "c") as c:
                B.store(results[i], compat.load(sums, [c]), [first + c])
        if isinstance(depth, int) and depth % lanes == 0:
            return results
        with times("serial", as_expr(depth) - as_expr(steps) * B.i64(lanes), "rest") as rest:
            k = as_expr(steps) * B.i64(lanes) + rest
            for line in range(rows):
                with B.loop("unroll", count, "c") as c:
                    so_far = compat.load(results[line], [first + c])
                    B.store(results[line], so_far + left(line, k) * right(k, first + c), [first + c])
    return results


def _folded(line: Buffer, count: int, lanes: int) -> Buffer:
    """The sums of each ``lanes`` elements of a buffer that has ``count`` times as many: halves are added."""
    while lanes > 1:
        half = lanes // 2
        folded = B.stack([count * half], "float32", "half")
        with B.loop("unroll", count, "c") as c, B.loop("vectorized", half, "v") as v:
            at = c * B.i64(lanes) + v
            both = compat.load(line, [at]) + compat.load(line, [at + B.i64(half)])
            B.store(folded, both, [c * B.i64(half) + v])
        line, lanes = folded, half
    return line


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
