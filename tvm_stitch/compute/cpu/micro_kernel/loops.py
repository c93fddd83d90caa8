# SPDX-License-Identifier: Apache-2.0
"""Loops of the micro-kernel: over tiles of rows, over panels, and over the steps of a reduction in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ....codegen import builder as B
from ....codegen.cpu.tasks import times
from ....compat import Buffer, Expr, T, tir
from ....graph.extent import Extent, as_expr


def each_tile(
    count: Extent, tile: int, whole: bool, visit: Callable[[Expr, Expr, int], None], fewest: int = 0
) -> None:
    """Emit a loop over tiles of rows. The last tile overlaps the one before. Too few rows are visited one by one.

    Args:
        count: number of rows.
        tile: rows of a tile.
        whole: whether ``count`` is known to be a multiple of ``tile``.
        visit: processes a tile, from its number, its first row, and its number of rows.
        fewest: a number of rows that ``count`` is never below.
    """
    if whole:
        tiles = count // tile if isinstance(count, int) else tir.floordiv(count, B.i64(tile))
        with times("serial", tiles, "tile") as at:
            visit(at, at * B.i64(tile), tile)
        return
    count = as_expr(count)

    def overlapping() -> None:
        with B.loop("serial", tir.floordiv(count + B.i64(tile - 1), B.i64(tile)), "tile") as at:
            visit(at, tir.min(at * B.i64(tile), count - B.i64(tile)), tile)

    def one_by_one() -> None:
        with B.loop("serial", count, "row") as at:
            visit(at, at, 1)

    if fewest >= tile:
        overlapping()
    else:
        B.either(tir.GE(count, B.i64(tile)), overlapping, one_by_one)


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
    count: Extent,
    step: Callable[[Expr], None],
    before: Callable[[Expr], None],
    at_once: int,
    unrolled: int,
) -> None:
    """Emit a loop of ``count`` steps in groups of ``at_once``, with ``before`` ahead of each group.

    The loop over the steps of a group is no loop of its own, which LLVM would unroll.

    Args:
        count: number of steps.
        step: emits a step.
        before: emits what comes ahead of a group, from its first step.
        at_once: steps of a group.
        unrolled: steps whose code is emitted one after the other. It divides ``at_once``.
    """

    def group(start: Expr) -> None:
        if unrolled == at_once:
            before(start)
        else:
            with T.If(tir.EQ(tir.floormod(start, B.i64(at_once)), B.i64(0))), T.Then():
                before(start)
        with B.loop("unroll", unrolled, "u") as u:
            step(start + u)

    _divided(count, unrolled, group, step)


def sequential(
    count: Extent,
    buffers: Sequence[list[Buffer]],
    step: Callable[[Expr, list[Buffer]], None],
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
    if size == 1 or (isinstance(count, int) and count == done):
        return
    with times("serial", as_expr(count) - as_expr(done), "rest") as rest:
        single(as_expr(done) + rest)
