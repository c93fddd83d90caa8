# SPDX-License-Identifier: Apache-2.0
"""Transposed copies on a CPU: square tiles of vectors, transposed in registers.

An element-wise copy costs two cycles an element. A tile of n x n elements needs n vector loads, n log2(n) shuffles
and n vector stores. The shuffles exchange halves of ever larger squares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ... import compat
from ...compat import Buffer, Expr, T, tir
from ...graph.extent import Extent, as_expr, ceildiv, product
from .. import builder as B
from .tasks import times

Changed = Callable[[Expr], Expr]
"""A function from an element, or a vector of elements, to the stored value."""


@dataclass(frozen=True)
class MatrixRows:
    """Rows of a matrix in a buffer of one dimension. The elements of a row are contiguous.

    Attributes:
        buffer: of one dimension.
        start: index of the first row.
        stride: elements from row to row.
    """

    buffer: Buffer
    start: Expr
    stride: Expr

    def at(self, row: Expr, column: Expr) -> Expr:
        """Return the index of an element."""
        return self.start + row * self.stride + column


def transpose(
    source: MatrixRows,
    to: MatrixRows,
    rows: Extent,
    columns: Extent,
    side: int,
    changed: Changed = lambda value: value,
) -> None:
    """Emit ``to[c, r] = changed(source[r, c])`` for the elements of a matrix.

    Tiles at an end overlap those before them.

    Args:
        source, to: the source and the destination.
        rows, columns: extents of ``source``.
        side: side of a tile, a power of two. A matrix with fewer rows or columns is copied element by element.
        changed: the function that is applied to each element.
    """
    whole = [
        tir.GE(extent, B.i64(side)) for extent in (rows, columns) if not isinstance(extent, int) and side > 1
    ]
    if side == 1 or any(isinstance(extent, int) and extent < side for extent in (rows, columns)):
        _elements(source, to, rows, columns, changed)
    elif not whole:
        _tiles(source, to, rows, columns, side, changed)
    else:
        B.either(
            whole[0] if len(whole) == 1 else tir.all(*whole),
            lambda: _tiles(source, to, rows, columns, side, changed),
            lambda: _elements(source, to, rows, columns, changed),
        )


def side_of(lanes: int, *extents: Extent) -> int:
    """Return the side of tiles for matrices of at most these extents, on a CPU with vectors of ``lanes`` elements."""
    side = lanes
    while side > 1 and any(isinstance(extent, int) and extent < side for extent in extents):
        side //= 2
    return side


def _elements(source: MatrixRows, to: MatrixRows, rows: Extent, columns: Extent, changed: Changed) -> None:
    """Copy element by element.

    LLVM unrolls both of two nested loops that it knows to be short. So if one extent is short, both loops become one.
    """

    def copy(r: Expr, c: Expr) -> None:
        B.store(to.buffer, changed(B.fetch(source.buffer, source.at(r, c))), [to.at(c, r)])

    if _is_short(rows) == _is_short(columns):
        with times("serial", rows, "r") as r, times("serial", columns, "c") as c:
            copy(r, c)
        return
    with times("serial", product([rows, columns]), "e") as e:
        short = columns if _is_short(columns) else rows
        whole, rest = tir.floordiv(e, as_expr(short)), tir.floormod(e, as_expr(short))
        copy(*((whole, rest) if short is columns else (rest, whole)))


def _is_short(extent: Extent) -> bool:
    """Return True if LLVM unrolls so many steps. The extent is a power of two, so that division by it is a shift."""
    return isinstance(extent, int) and extent in (2, 4, 8, 16)


def _tiles(
    source: MatrixRows, to: MatrixRows, rows: Extent, columns: Extent, side: int, changed: Changed
) -> None:
    with _steps(rows, side, "r") as r, _steps(columns, side, "c") as c:
        start = B.bind(source.at(r, c), "start")
        begin = B.bind(to.at(c, r), "begin")
        lines = []
        for i in range(side):
            position = _vector(start + B.i64(i) * source.stride, side)
            lines.append(_named(changed(compat.load(source.buffer, [position])), side))
        half = 1
        while half < side:
            lines = [_named(line, side) for line in _exchanged(lines, half)]
            half *= 2
        for i, line in enumerate(lines):
            T.buffer_store(to.buffer, line, [_vector(begin + B.i64(i) * to.stride, side)])


@contextmanager
def _steps(extent: Extent, side: int, name: str) -> Iterator[Expr]:
    """Open a loop over the tiles along an axis, which yields the first position of each."""
    with times("serial", ceildiv(extent, side), name) as tile:
        at = tile * B.i64(side)
        exact = isinstance(extent, int) and extent % side == 0
        yield at if exact else tir.min(at, as_expr(extent) - B.i64(side))


def _vector(start: Expr, side: int) -> Expr:
    return tir.Ramp(start, B.i64(1), side)


def _named(value: Expr, side: int) -> Expr:
    """Store a vector in a buffer and return its load. LLVM turns the buffer into a register."""
    dtype = compat.dtype_of(value).split("x")[0]
    buffer = B.stack([side], dtype, "line")
    T.buffer_store(buffer, value, [_vector(B.i64(0), side)])
    return compat.load(buffer, [_vector(B.i64(0), side)])


def _exchanged(lines: list[Expr], half: int) -> list[Expr]:
    """Return the lines after the squares of ``2 half`` x ``2 half`` have exchanged two of their quarters."""
    side = len(lines)
    exchanged = list(lines)
    for i in range(side):
        if i & half:
            continue
        pair = [lines[i], lines[i | half]]
        upper = [k if not k & half else side + (k ^ half) for k in range(side)]
        lower = [k | half if not k & half else side + k for k in range(side)]
        for line, order in ((i, upper), (i | half, lower)):
            exchanged[line] = tir.Shuffle(pair, [compat.const(k, "int32") for k in order])
    return exchanged
