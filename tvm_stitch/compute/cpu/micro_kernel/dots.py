# SPDX-License-Identifier: Apache-2.0
"""Sums over a reduction that is contiguous in both factors. Vectors run along the reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .... import compat
from ....codegen import builder as B
from ....codegen.cpu.tasks import times
from ....compat import Buffer, Expr, T, tir
from ....cost.choices import Choices
from ....graph.extent import Extent, as_expr
from ..dot_instruction import DotInstruction, vector
from .prefetch import Ahead
from .reduction_blocks import blocks_of
from .sums import Groups, Term, emit_sums
from .tile import Tile

Pieces = Callable[[int, Expr, Expr], tuple[Expr, Expr]]
"""Maps a row, an element of the reduction and a column to the pieces of both factors from that element on.

A piece has the elements that an instruction multiplies: its groups for a vector of sums.
"""

Share = Callable[[Expr, int, Extent], "Ahead | None"]
"""Maps a loop over the reduction, the number of such loops in a panel and their steps to the loop's prefetches."""


def emit_dots(
    rows: int,
    width: int,
    lanes: int,
    reduction: Extent,
    left: Callable[[int, Expr], Expr],
    right: Callable[[Expr, Expr], Expr],
    choices: Choices,
    dtype: str = "float32",
    along: tuple[DotInstruction, Pieces] | None = None,
    ahead: Share | None = None,
) -> list[Buffer]:
    """Emit ``rows`` x ``width`` sums over a reduction that is contiguous in both factors, and return a buffer for
    each row.

    Vectors run along the reduction, so each sum is a vector of ``lanes`` partial sums until the end.

    Args:
        rows, width: size of the tile. ``width`` is a power of two, or a multiple of the columns of a
            tile (``dot_columns``, or ``group_dot_columns`` with an instruction).
        lanes: elements of a vector.
        reduction: length of the reduction.
        left: an element, from the row of the tile and the reduction index.
        right: an element, from the reduction index and the column of the tile.
        choices: the device's constants of choice.
        dtype: type of the sums.
        along: an instruction that multiplies groups, for vectors along the reduction, and its pieces of the factors.
            The last elements, fewer than those of a piece, are multiplied one by one.
        ahead: prefetches of the right side that is read next, in shares. None without prefetches.
    """
    tile = Tile(rows, width, 1, dtype)
    results = tile.buffers("dots")
    count = min(width, choices.dot_columns if along is None else choices.group_dot_columns)
    piece = lanes if along is None else lanes * along[0].group
    steps = as_expr(reduction) // B.i64(piece) if not isinstance(reduction, int) else reduction // piece
    with times("serial", width // count, "group") as group:
        first = group * B.i64(count)

        def term(i: int, at: list[Expr], c: Expr) -> Expr:
            k = at[0] * B.i64(lanes) + tir.floormod(c, B.i64(lanes))
            return left(i, k) * right(k, first + tir.floordiv(c, B.i64(lanes)))

        def pieces(i: int, at: list[Expr], c: Expr) -> tuple[Expr, Expr]:
            assert along is not None
            return along[1](i, at[0] * B.i64(piece), first + tir.floordiv(c, B.i64(lanes)))

        products = term if along is None else (along[0], pieces)
        fetched = None if ahead is None else ahead(group, width // count, steps)
        partial = _dots_of(rows, count * lanes, lanes, steps, products, choices, dtype, fetched)
        for i, line in enumerate(partial):
            T.buffer_store(results[i], _folded(line, count, lanes), [_positions(first, count)])
        if isinstance(reduction, int) and reduction % piece == 0:
            return results
        with times("serial", as_expr(reduction) - as_expr(steps) * B.i64(piece), "rest") as rest:
            k = as_expr(steps) * B.i64(piece) + rest
            for line in range(rows):
                with B.loop("unroll", count, "c") as c:
                    so_far = compat.load(results[line], [first + c])
                    B.store(results[line], so_far + left(line, k) * right(k, first + c), [first + c])
    return results


def _dots_of(
    rows: int,
    width: int,
    lanes: int,
    steps: Extent,
    term: Term | tuple[DotInstruction, Groups],
    choices: Choices,
    dtype: str,
    ahead: Ahead | None,
) -> list[Buffer]:
    """Return the vectors of partial sums for ``emit_dots``.

    Totals of blocks are in a tile of their own, because there are too few tiles for :class:`Totals`. An instruction's
    sums have no blocks: its narrow factors have larger errors than a long sum of float32, and no register is left.
    """
    blocks = None if isinstance(term, tuple) else blocks_of([steps], choices)
    if blocks is None:
        return emit_sums(rows, width, lanes, [steps], term, choices, dtype, ahead=ahead)
    tile = Tile(rows, width, lanes, dtype)
    totals = tile.buffers("totals")
    tile.clear(totals)
    with times("serial", blocks.count, "block") as block:
        sums = emit_sums(rows, width, lanes, [steps], term, choices, dtype, block=(blocks, block))
        tile.each(totals, lambda i, c: compat.load(totals[i], [c]) + compat.load(sums[i], [c]))
    return totals


def _folded(line: Buffer, count: int, lanes: int) -> Expr:
    """Return a vector of ``count`` sums, each of ``lanes`` elements of a buffer. Halves are added repeatedly.

    Elements are read vector by vector, as they were written. Otherwise LLVM keeps them in memory in the preceding
    loop.
    """
    dtype = compat.buffer_dtype(line)
    sums = [compat.load(line, [_positions(B.i64(c * lanes), lanes)]) for c in range(count)]
    while lanes > 1:
        half = lanes // 2
        low = [c * lanes + v for c in range(count) for v in range(half)]
        lower, upper = _shuffled(sums, low), _shuffled(sums, [at + half for at in low])
        folded, lanes, positions = (
            B.stack([count * half], dtype, "half"),
            half,
            _positions(B.i64(0), count * half),
        )
        T.buffer_store(folded, lower + upper, [positions])
        sums = [compat.load(folded, [positions])]
    return sums[0] if len(sums) == 1 else _shuffled(sums, range(count))


def _shuffled(vectors: Sequence[Expr], order: Iterable[int]) -> Expr:
    """Return a vector of elements of others, whose elements are numbered consecutively."""
    return tir.Shuffle(list(vectors), [compat.const(at, "int32") for at in order])


def _positions(first: Expr, count: int) -> Expr:
    """Return the indices of ``count`` neighbours, or the index itself for a single one."""
    return vector(first, count) if count > 1 else first
