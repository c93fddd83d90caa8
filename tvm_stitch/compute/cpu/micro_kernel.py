# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of products on a CPU: a tile of sums in registers over the whole reduction dimension.

It keeps ``rows x columns`` sums: 8 x 2 vectors of AVX-512's 32 registers, 6 x 2 of 16. Each row's sums are a
separate buffer. In symbolic functions TVM asks the runtime for the memory of a buffer of 1 KiB. No compiler turns
that into registers (46 instead of 113 GFLOP/s).

Long sums are sums of shorter ones, because the error of adding one by one grows with the number of terms. This
holds for products and convolutions. A panel's tiles are visited block by block of the reduction, and the totals of
the blocks lie in memory. With totals and sums both in registers, LLVM stores sums within the innermost loop, at
half the speed.

The next weights are prefetched. A block of packed weights has 256 steps of the reduction (32 KiB). Its first tile
waits for memory, and the others find the block in the cache. So each tile prefetches its share of the next block
into the second-level cache, one or two lines every eight steps. On one thread of an Emerald Rapids Xeon, a product
of 16 rows reaches 148 instead of 110 GFLOP/s. A convolution of 512 channels on 7 x 7 positions reaches 176 instead
of 134. ResNet-50 takes 56.4 instead of 65.7 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ... import compat
from ...codegen import builder as B
from ...codegen.cpu.columns import count_of
from ...codegen.cpu.tasks import times
from ...compat import Buffer, Expr, T, tir
from ...cost.choices import Choices
from ...graph.dtype import item_bytes
from ...graph.extent import Extent, as_expr, ceildiv, flatten, is_number, product, unflatten
from .dot_instruction import DotInstruction, vector
from .tiles import CACHE_LINE

Term = Callable[[int, list[Expr], Expr], Expr]
"""Maps a row, the coordinates of the reduction and a column to the product that the sum gets."""

Groups = Callable[[int, list[Expr], Expr], tuple[Expr, Expr]]
"""Maps a row, a reduction step and a column to the groups that an instruction multiplies.

These are the row's group, and the groups of a vector of columns from that column on.
"""


@dataclass(frozen=True)
class ReductionBlocks:
    """The blocks of a long reduction: each has some iterations of one of its loops, with all loops inside that one.

    Long sums are sums of shorter ones, because the error of adding one by one grows with the number of terms.

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


@dataclass(frozen=True)
class Ahead:
    """The share of the next block's weights that each tile of a block prefetches into the second-level cache.

    The hardware prefetches only as fast as the first tile reads. That tile then waits for memory, while the others
    find the whole block in the cache.

    Attributes:
        weights: flat buffer, as the tiles read it.
        first: first element of this tile's share.
        lines: cache lines per prefetch, every ``fetch_steps`` steps of the reduction.
    """

    weights: Buffer
    first: Expr
    lines: int
    choices: Choices

    @staticmethod
    def of(
        weights: Buffer, start: Expr, reduction: Extent, width: int, tile: Expr, tiles: int, choices: Choices
    ) -> Ahead | None:
        """Return the share of one tile of a block, or None if prefetching does not pay.

        Args:
            weights: the packed weights.
            start: first element of the block, which has ``reduction`` x ``width`` elements.
            reduction: steps of the reduction.
            width: elements of a step.
            tile: number of the tile.
            tiles: number of tiles of the block.
        """
        if (
            not isinstance(reduction, int)
            or reduction < choices.fetch_steps
            or tiles < choices.least_tiles_of_fetch
        ):
            return None
        weights = B.flat_view(weights)
        per_line = CACHE_LINE // item_bytes(compat.buffer_dtype(weights))
        groups = reduction // choices.fetch_steps
        lines = -(-reduction * width // (per_line * groups * tiles))
        share = B.i64(groups * lines * per_line)
        return Ahead(weights, start + B.i64(reduction * width) + tile * share, lines, choices)

    def emit(self, step: Expr) -> None:
        """Emit the prefetches before a group of steps that begins at ``step``."""
        line = CACHE_LINE // item_bytes(compat.buffer_dtype(self.weights))
        at = self.first + tir.floordiv(step, B.i64(self.choices.fetch_steps)) * B.i64(self.lines * line)
        for i in range(self.lines):
            B.prefetch(self.weights, at + B.i64(i * line))


def emit_sums(
    rows: int,
    width: int,
    lanes: int,
    reduction: Sequence[Extent],
    term: Term | tuple[DotInstruction, Groups],
    choices: Choices,
    dtype: str = "float32",
    unrolled: int = 0,
    block: tuple[ReductionBlocks, Expr] | None = None,
    ahead: Ahead | None = None,
    whole: bool = False,
) -> list[Buffer]:
    """Emit ``rows`` x ``width`` sums over the loops of ``reduction``, and return a buffer for each row.

    Args:
        rows, width: size of the tile. ``width`` is a multiple of ``lanes``, or less.
        lanes: elements of a vector.
        reduction: extents of the reduction loops, outermost first.
        term: a product, from a row of the tile, the loops' variables, and a column of the tile. Or an instruction
            and its groups, if ``reduction`` counts groups.
        choices: the device's constants of choice.
        dtype: type of the sums.
        unrolled: number of innermost loops that are unrolled.
        block: the only block of the reduction to sum, if not all of it.
        ahead: the prefetch of the weights that are read next.
        whole: whether the code here and behind treats a row as a single vector.
    """
    tile = _Tile(rows, width, width if whole else min(lanes, width), dtype)
    sums = tile.buffers("sums")
    tile.clear(sums)
    if any(is_number(extent, 0) for extent in reduction):
        return sums
    before: list[Expr] = []
    loops = list(reduction)
    if block is not None:
        blocks, number = block
        *before, block_of_loop = unflatten(number, blocks.divided)
        first = block_of_loop * B.i64(blocks.step)
        loops = [count_of(reduction[blocks.level], blocks.step, first), *reduction[blocks.level + 1 :]]
    kinds = ["serial"] * (len(loops) - unrolled) + ["unroll"] * unrolled

    def step(at: list[Expr], to: list[Buffer] = sums) -> None:
        coordinates = at if block is None else [*before, first + at[0], *at[1:]]
        if isinstance(term, tuple):
            instruction, groups = term
            tile.each_vector(
                to,
                lambda i, c, so_far: instruction.add(so_far, *groups(i, coordinates, c)),
                instruction.lanes,
            )
        else:
            tile.each(to, lambda i, c: compat.load(to[i], [c]) + term(i, coordinates, c))

    chains = chains_of(rows, -(-width // lanes), choices)
    if chains > 1 and not unrolled:
        more = [tile.buffers(f"chain{n}_") for n in range(1, chains)]
        for each in more:
            tile.clear(each)
        with _loops(zip(kinds[:-1], loops[:-1])) as outer:
            _sequential(loops[-1], [sums, *more], lambda k, to: step([*outer, k], to))
        tile.each(
            sums, lambda i, c: sum((compat.load(each[i], [c]) for each in more), compat.load(sums[i], [c]))
        )
        return sums
    if ahead is None or unrolled:
        with _loops(zip(kinds, loops)) as at:
            step(at)
        return sums
    with _loops(zip(kinds[:-1], loops[:-1])) as outer:
        in_groups(
            loops[-1],
            lambda k: step([*outer, k]),
            lambda k: ahead.emit(flatten([*outer, k], loops)),
            choices.fetch_steps,
        )
    return sums


def chains_of(rows: int, vectors: int, choices: Choices) -> int:
    """Return the number of independent partial sums of each element, over interleaved steps of the reduction.

    The few sums of a small tile would wait for each other's additions.
    """
    chains = 1
    while 2 * chains * rows * vectors <= choices.sum_vectors_in_flight:
        chains *= 2
    return chains


def _sequential(
    count: Extent, buffers: Sequence[list[Buffer]], step: Callable[[Expr, list[Buffer]], None]
) -> None:
    """Emit a loop of ``count`` steps, which use the ``buffers`` cyclically."""

    def group(start: Expr) -> None:
        for n, to in enumerate(buffers):
            step(start + B.i64(n), to)

    _divided(count, len(buffers), group, lambda at: step(at, buffers[0]))


def in_groups(
    count: Extent, step: Callable[[Expr], None], before: Callable[[Expr], None], at_once: int
) -> None:
    """Emit a loop of ``count`` steps in groups of ``at_once``, with ``before`` ahead of each group."""

    def group(start: Expr) -> None:
        before(start)
        with B.loop("unroll", at_once, "u") as u:
            step(start + u)

    _divided(count, at_once, group, step)


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

    def _tile(self, rows: int) -> _Tile:
        return _Tile(rows, self.width, self.lanes, self.dtype)

    def _at(self, number: Expr, rows: int, row: int, column: Expr) -> Expr:
        return (number * B.i64(rows) + B.i64(row)) * B.i64(self.width) + column


def emit_dots(
    rows: int,
    width: int,
    lanes: int,
    reduction: Extent,
    left: Callable[[int, Expr], Expr],
    right: Callable[[Expr, Expr], Expr],
    choices: Choices,
    dtype: str = "float32",
) -> list[Buffer]:
    """Emit ``rows`` x ``width`` sums over a reduction that is contiguous in both factors, and return a buffer for
    each row.

    Vectors run along the reduction, so each sum is a vector of ``lanes`` partial sums until the end.

    Args:
        rows, width: size of the tile. ``width`` is a power of two, or a multiple of ``dot_columns``.
        lanes: elements of a vector.
        reduction: length of the reduction.
        left: an element, from the row of the tile and the reduction index.
        right: an element, from the reduction index and the column of the tile.
        choices: the device's constants of choice.
        dtype: type of the sums.
    """
    tile = _Tile(rows, width, 1, dtype)
    results = tile.buffers("dots")
    count = min(width, choices.dot_columns)
    steps = as_expr(reduction) // B.i64(lanes) if not isinstance(reduction, int) else reduction // lanes
    with times("serial", width // count, "group") as group:
        first = group * B.i64(count)

        def term(i: int, at: list[Expr], c: Expr) -> Expr:
            k = at[0] * B.i64(lanes) + tir.floormod(c, B.i64(lanes))
            return left(i, k) * right(k, first + tir.floordiv(c, B.i64(lanes)))

        partial = _dots_of(rows, count * lanes, lanes, steps, term, choices, dtype)
        for i, line in enumerate(partial):
            T.buffer_store(results[i], _folded(line, count, lanes), [_positions(first, count)])
        if isinstance(reduction, int) and reduction % lanes == 0:
            return results
        with times("serial", as_expr(reduction) - as_expr(steps) * B.i64(lanes), "rest") as rest:
            k = as_expr(steps) * B.i64(lanes) + rest
            for line in range(rows):
                with B.loop("unroll", count, "c") as c:
                    so_far = compat.load(results[line], [first + c])
                    B.store(results[line], so_far + left(line, k) * right(k, first + c), [first + c])
    return results


def _dots_of(
    rows: int, width: int, lanes: int, steps: Extent, term: Term, choices: Choices, dtype: str
) -> list[Buffer]:
    """Return the vectors of partial sums for ``emit_dots``.

    Totals of blocks are in a tile of their own, because there are too few tiles for :class:`Totals`.
    """
    blocks = blocks_of([steps], choices)
    if blocks is None:
        return emit_sums(rows, width, lanes, [steps], term, choices, dtype)
    tile = _Tile(rows, width, lanes, dtype)
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


class _Tile:
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
def _loops(loops: Iterable[tuple[str, Extent]]) -> Iterator[list[Expr]]:
    """Emit nested loops, each of a kind and an extent."""
    with ExitStack() as stack:
        yield [stack.enter_context(times(kind, extent, f"k{i}")) for i, (kind, extent) in enumerate(loops)]
