# SPDX-License-Identifier: Apache-2.0
"""A tile of sums in registers, and the totals of a task's tiles in memory.

Each row's sums are a separate buffer. In symbolic functions TVM asks the runtime for the memory of a buffer of
1 KiB. No compiler turns that into registers (46 instead of 113 GFLOP/s).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .... import compat
from ....codegen import builder as B
from ....compat import Buffer, Expr
from ..dot_instruction import vector


class Tile:
    """The rows of a tile, each in a separate buffer. TVM asks the runtime for memory for a buffer of 1 KiB.

    LLVM splits a vector longer than the CPU's in its last steps, and takes less time until then. But it may keep a
    buffer in memory that is written as several vectors and read as one, or the other way round.
    """

    def __init__(self, rows: int, width: int, lanes: int, dtype: str):
        self.rows, self.width, self.lanes, self.dtype = rows, width, lanes, dtype

    def buffers(self, name: str) -> list[Buffer]:
        """Return buffers that LLVM turns into registers."""
        return [B.stack([self.width], self.dtype, f"{name}{i}") for i in range(self.rows)]

    def clear(self, buffers: Sequence[Buffer]) -> None:
        """Store zeros to all elements."""
        self.each(buffers, lambda i, c: compat.const(0, self.dtype))

    def each(
        self,
        buffers: Sequence[Buffer],
        value: Callable[[int, Expr], Expr],
        to: Callable[[int, Expr], tuple[Buffer, Expr]] | None = None,
    ) -> None:
        """Store the value of each row and column in place, or at the position that ``to`` returns."""
        for i, row in enumerate(buffers):
            with B.loop("unroll", self.width // self.lanes, "j") as j:
                with B.loop("vectorized", self.lanes, "v") as v:
                    column = j * B.i64(self.lanes) + v
                    buffer, position = (row, column) if to is None else to(i, column)
                    B.store(buffer, value(i, column), [position])

    def each_vector(
        self, buffers: Sequence[Buffer], value: Callable[[int, Expr, Expr], Expr], lanes: int
    ) -> None:
        """Store the value of each vector of a row, computed from the row, the vector's first column and its current
        value.
        """
        for i, row in enumerate(buffers):
            with B.loop("unroll", self.width // lanes, "j") as j:
                position = vector(j * B.i64(lanes), lanes)
                B.store(row, value(i, j * B.i64(lanes), compat.load(row, [position])), [position])


class Totals:
    """Totals over the blocks of a long reduction, for the tiles of a task.

    They lie in memory. Tiles are visited block by block, and the first-level cache holds a block. With sums and
    totals both in registers, LLVM keeps neither there, and stores sums within the innermost loop.
    """

    def __init__(self, tiles: int, rows: int, width: int, lanes: int, dtype: str):
        self.width, self.lanes, self.dtype = width, min(lanes, width), dtype
        self.size = tiles * rows * width
        self.buffer = B.stack([self.size], dtype, "totals")

    def clear(self) -> None:
        """Emit stores of zeros to all totals."""
        with B.loop("serial", self.size // self.lanes, "j") as j, B.loop("vectorized", self.lanes, "v") as v:
            B.store(self.buffer, compat.const(0, self.dtype), [j * B.i64(self.lanes) + v])

    def add(self, number: Expr, sums: Sequence[Buffer]) -> None:
        """Emit the addition of a tile's sums to its totals."""
        self._tile(len(sums)).each(
            sums,
            lambda i, c: (
                compat.load(self.buffer, [self._at(number, len(sums), i, c)]) + compat.load(sums[i], [c])
            ),
            lambda i, c: (self.buffer, self._at(number, len(sums), i, c)),
        )

    def read(self, number: Expr, rows: int) -> list[Buffer]:
        """Return a tile's totals, each row in a buffer."""
        tile = self._tile(rows)
        lines = tile.buffers("total")
        tile.each(lines, lambda i, c: compat.load(self.buffer, [self._at(number, rows, i, c)]))
        return lines

    def _tile(self, rows: int) -> Tile:
        return Tile(rows, self.width, self.lanes, self.dtype)

    def _at(self, number: Expr, rows: int, row: int, column: Expr) -> Expr:
        return (number * B.i64(rows) + B.i64(row)) * B.i64(self.width) + column
