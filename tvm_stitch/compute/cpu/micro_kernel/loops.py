# SPDX-License-Identifier: Apache-2.0
"""Loops of the micro-kernel: over tiles of rows, over panels, and over the steps of a reduction in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ....codegen import builder as B
from ....codegen.cpu.tasks import times
from ....compat import Buffer, Expr, T, tir
from ....graph.extent import Extent, as_expr


def each_tile(count: Extent, tile: int, whole: bool, visit: Callable[[Expr, Expr, int], None]) -> None:
    """Emit a loop over tiles of rows. The last tile overlaps the one before. Too few rows are visited one by one.

    Args:
        count: number of rows.
        tile: rows of a tile.
        whole: whether ``count`` is known to be a multiple of ``tile``.
        visit: processes a tile, from its number, its first row, and its number of rows.
    """
    if whole:
        tiles = count // tile if isinstance(count, int) else tir.floordiv(count, B.i64(tile))
        with times("serial", tiles, "tile") as at:
            visit(at, at * B.i64(tile), tile)
        return
    count = as_expr(count)
    with T.If(tir.GE(count, B.i64(tile))):
        with T.Then():
            with B.loop("serial", tir.floordiv(count + B.i64(tile - 1), B.i64(tile)), "tile") as at:
                visit(at, tir.min(at * B.i64(tile), count - B.i64(tile)), tile)
        with T.Else():
            with B.loop("serial", count, "row") as at:
                visit(at, at, 1)


def each_width(panel: Expr, columns: int, width: int, visit: Callable[[int], None]) -> None:
    """Call ``visit`` for a panel of packed columns with its number of result columns, which is less in the last
    panel.
    """
    tail = columns % width
    if tail and columns > width:
        B.either(tir.EQ(panel, B.i64(columns // width)), lambda: visit(tail), lambda: visit(width))
    else:
        visit(tail or width)


@contextmanager
def nested(loops: Iterable[tuple[str, Extent]]) -> Iterator[list[Expr]]:
    """Emit nested loops, each of a kind and an extent."""
    with ExitStack() as stack:
        yield [stack.enter_context(times(kind, extent, f"k{i}")) for i, (kind, extent) in enumerate(loops)]


def in_groups(
    count: Extent, step: Callable[[Expr], None], before: Callable[[Expr], None], at_once: int
) -> None:
    """Emit a loop of ``count`` steps in groups of ``at_once``, with ``before`` ahead of each group."""

    def group(start: Expr) -> None:
        before(start)
        with B.loop("unroll", at_once, "u") as u:
            step(start + u)

    _divided(count, at_once, group, step)


def sequential(
    count: Extent, buffers: Sequence[list[Buffer]], step: Callable[[Expr, list[Buffer]], None]
) -> None:
    """Emit a loop of ``count`` steps, which use the ``buffers`` cyclically."""

    def group(start: Expr) -> None:
        for n, to in enumerate(buffers):
            step(start + B.i64(n), to)

    _divided(count, len(buffers), group, lambda at: step(at, buffers[0]))


def _divided(count: Extent, size: int, group: Callable[[Expr], None], single: Callable[[Expr], None]) -> None:
    """Emit a loop over groups of ``size`` steps, called with the first of each, and a loop over the remaining
    steps.
    """
    whole = count // size if isinstance(count, int) else tir.floordiv(as_expr(count), B.i64(size))
    with times("serial", whole, "k") as at:
        group(at * B.i64(size))
    done = whole * size if isinstance(whole, int) else whole * B.i64(size)
    if isinstance(count, int) and count == done:
        return
    with times("serial", as_expr(count) - as_expr(done), "rest") as rest:
        single(as_expr(done) + rest)
