# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of products on a CPU: a tile of sums that stay in registers over the whole depth.

It keeps ``rows x columns`` sums: 8 x 2 vectors of AVX-512's 32 registers, 6 x 2 of 16. Each row's sums are a buffer
of their own: for one of 1 KiB TVM asks the runtime for memory in symbolic functions, which no compiler turns into
registers (46 instead of 113 GFLOP/s).

Long sums are sums of shorter ones, of products and convolutions alike: the error of adding one by one grows with
their number. A panel's tiles are visited block by block of the depth, and what the blocks add up to lies in memory
meanwhile. With totals beside the sums in registers LLVM stores sums within the innermost loop, at half the speed.

The next weights are fetched meanwhile. Of a block of packed weights (256 steps of the depth, 32 KiB) the first tile
waits for memory, and the others find it in the cache. So each tile fetches its share of the block behind into the
second-level cache, a line or two for eight steps. One thread of an Emerald Rapids Xeon: a product of 16 rows 110 ->
148 GFLOP/s, a convolution of 512 channels on 7 x 7 places 134 -> 176, ResNet-50 65.7 -> 56.4 ms.
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
from ...graph.dtype import item_bytes
from ...graph.extent import Extent, as_expr, ceildiv, flatten, is_number, product, unflatten
from .dot_instruction import DotInstruction, vector
from .tiles import (
    CACHE_LINE,
    DEPTH_OF_SUM,
    DOT_COLUMNS,
    FETCH_STEPS,
    LEAST_TILES_OF_FETCH,
    LONG_DEPTH,
    VECTORS_IN_FLIGHT,
)

Term = Callable[[int, list[Expr], Expr], Expr]
"""What a row's sum gets in a column at a place of the depth."""

Groups = Callable[[int, list[Expr], Expr], tuple[Expr, Expr]]
"""What an instruction multiplies for a row at a step of the depth: the row's group of elements, and those of a vector
of columns, from its first one on."""


@dataclass(frozen=True)
class DepthBlocks:
    """The blocks of a long depth: some iterations of one of its loops each, with all loops inside that one.

    Long sums are sums of shorter ones: the error of adding one by one grows with their number.

    Attributes:
        depth: extents of the loops, outermost first.
        level: of the loop that is divided.
        step: its iterations in a block.
    """

    depth: tuple[Extent, ...]
    level: int
    step: int

    @property
    def divided(self) -> list[Extent]:
        """Extents of the loops over blocks."""
        return [*self.depth[: self.level], ceildiv(self.depth[self.level], self.step)]

    @property
    def count(self) -> Extent:
        """How many blocks there are."""
        return product(self.divided)


def blocks_of(depth: Sequence[Extent]) -> DepthBlocks | None:
    """Return the blocks of a depth; None where it is short enough to be added one by one."""
    total = product(depth)
    if isinstance(total, int) and total <= LONG_DEPTH:
        return None
    level, inner = len(depth) - 1, 1
    while level and inner * int(depth[level]) <= DEPTH_OF_SUM:
        inner *= int(depth[level])
        level -= 1
    extent, step = depth[level], DEPTH_OF_SUM // inner
    if isinstance(extent, int):  # blocks of one size, as far as possible
        step = -(-extent // -(-extent // step))
    return DepthBlocks(tuple(depth), level, step)


@contextmanager
def last_of(blocks: DepthBlocks, block: Expr) -> Iterator[None]:
    """What is emitted meanwhile is for the last block of a depth."""
    with T.If(tir.EQ(block, as_expr(blocks.count) - B.i64(1))), T.Then():
        yield


@dataclass(frozen=True)
class Ahead:
    """What the tiles of a block bring into the second-level cache: the weights behind the block's, a share each.

    The hardware fetches ahead only as fast as the first tile reads, which then waits for memory while the others find
    all of the block in the cache.

    Attributes:
        weights: flat, as the tiles read them.
        first: the first element of this tile's share.
        lines: fetched at a time, every ``FETCH_STEPS`` steps of the depth.
    """

    weights: Buffer
    first: Expr
    lines: int

    @staticmethod
    def of(weights: Buffer, start: Expr, depth: Extent, width: int, tile: Expr, tiles: int) -> Ahead | None:
        """The share of one of the ``tiles`` of a block that begins at ``start``, of ``depth`` x ``width`` elements."""
        if not isinstance(depth, int) or depth < FETCH_STEPS or tiles < LEAST_TILES_OF_FETCH:
            return None
        weights = B.flat_view(weights)
        per_line = CACHE_LINE // item_bytes(compat.buffer_dtype(weights))
        groups = depth // FETCH_STEPS
        lines = -(-depth * width // (per_line * groups * tiles))
        share = B.i64(groups * lines * per_line)
        return Ahead(weights, start + B.i64(depth * width) + tile * share, lines)

    def emit(self, step: Expr) -> None:
        """Emit the fetches before a group of steps, which begins at ``step``."""
        line = CACHE_LINE // item_bytes(compat.buffer_dtype(self.weights))
        at = self.first + tir.floordiv(step, B.i64(FETCH_STEPS)) * B.i64(self.lines * line)
        for i in range(self.lines):
            B.prefetch(self.weights, at + B.i64(i * line))


def emit_sums(
    rows: int,
    width: int,
    lanes: int,
    depth: Sequence[Extent],
    term: Term | tuple[DotInstruction, Groups],
    dtype: str = "float32",
    unrolled: int = 0,
    block: tuple[DepthBlocks, Expr] | None = None,
    ahead: Ahead | None = None,
    whole: bool = False,
) -> list[Buffer]:
    """``rows`` x ``width`` sums over the loops of ``depth``, each row in a buffer.

    Args:
        rows, width: of the tile; ``width`` is a multiple of ``lanes``, or less.
        lanes: of a vector.
        depth: extents of the loops, outermost first.
        term: a product, at a row of the tile, the loops' variables, and a column of the tile; or an instruction with
            what it multiplies, where the depth has its groups.
        dtype: of the sums.
        unrolled: how many of the innermost loops are unrolled.
        block: over which block of the depth only.
        ahead: the part of the weights to be read next that is brought into the cache meanwhile.
        whole: whether a row is one vector in all that is done to it, here and behind.
    """
    tile = _Tile(rows, width, width if whole else min(lanes, width), dtype)
    sums = tile.buffers("sums")
    tile.clear(sums)
    if any(is_number(extent, 0) for extent in depth):
        return sums
    before: list[Expr] = []
    loops = list(depth)
    if block is not None:
        blocks, number = block
        *before, part = unflatten(number, blocks.divided)
        first = part * B.i64(blocks.step)
        loops = [count_of(depth[blocks.level], blocks.step, first), *depth[blocks.level + 1 :]]
    kinds = ["serial"] * (len(loops) - unrolled) + ["unroll"] * unrolled

    def step(at: list[Expr], to: list[Buffer] = sums) -> None:
        place = at if block is None else [*before, first + at[0], *at[1:]]
        if isinstance(term, tuple):
            instruction, groups = term
            tile.each_vector(
                to, lambda i, c, so_far: instruction.add(so_far, *groups(i, place, c)), instruction.lanes
            )
        else:
            tile.each(to, lambda i, c: compat.load(to[i], [c]) + term(i, place, c))

    chains = chains_of(rows, -(-width // lanes))
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
        in_groups(loops[-1], lambda k: step([*outer, k]), lambda k: ahead.emit(flatten([*outer, k], loops)))
    return sums


def chains_of(rows: int, vectors: int) -> int:
    """Sums for each element of a tile, over every so many-th step of the depth: a small tile's wait for each other."""
    chains = 1
    while 2 * chains * rows * vectors <= VECTORS_IN_FLIGHT:
        chains *= 2
    return chains


def _sequential(
    count: Extent, buffers: Sequence[list[Buffer]], step: Callable[[Expr, list[Buffer]], None]
) -> None:
    """Emit a loop of ``count`` steps, which take the ``buffers`` in turn."""

    def group(start: Expr) -> None:
        for n, to in enumerate(buffers):
            step(start + B.i64(n), to)

    _divided(count, len(buffers), group, lambda at: step(at, buffers[0]))


def in_groups(count: Extent, step: Callable[[Expr], None], before: Callable[[Expr], None]) -> None:
    """Emit a loop of ``count`` steps, ``FETCH_STEPS`` at a time, with something before each of these groups."""

    def group(start: Expr) -> None:
        before(start)
        with B.loop("unroll", FETCH_STEPS, "u") as u:
            step(start + u)

    _divided(count, FETCH_STEPS, group, step)


def _divided(count: Extent, size: int, group: Callable[[Expr], None], single: Callable[[Expr], None]) -> None:
    """Emit a loop over groups of ``size`` steps, by the first of each, and one over the steps that are left."""
    whole = count // size if isinstance(count, int) else tir.floordiv(as_expr(count), B.i64(size))
    with times("serial", whole, "k") as at:
        group(at * B.i64(size))
    done = whole * size if isinstance(whole, int) else whole * B.i64(size)
    if isinstance(count, int) and count == done:
        return
    with times("serial", as_expr(count) - as_expr(done), "rest") as rest:
        single(as_expr(done) + rest)


class Totals:
    """What the blocks of a long depth add up to, for the tiles of a task.

    They lie in memory, and tiles are visited block by block, which the first-level cache holds: of sums and totals at
    once in registers LLVM keeps neither, and stores sums within the innermost loop.
    """

    def __init__(self, tiles: int, rows: int, width: int, lanes: int, dtype: str):
        self.width, self.lanes, self.dtype = width, min(lanes, width), dtype
        self.size = tiles * rows * width
        self.buffer = B.stack([self.size], dtype, "totals")

    def clear(self) -> None:
        """Emit stores of zeros everywhere."""
        with B.loop("serial", self.size // self.lanes, "j") as j, B.loop("vectorized", self.lanes, "v") as v:
            B.store(self.buffer, compat.const(0, self.dtype), [j * B.i64(self.lanes) + v])

    def add(self, number: Expr, sums: Sequence[Buffer]) -> None:
        """Emit the addition of a tile's sums, by the tile's number."""
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
        found = tile.buffers("total")
        tile.each(found, lambda i, c: compat.load(self.buffer, [self._at(number, rows, i, c)]))
        return found

    def _tile(self, rows: int) -> _Tile:
        return _Tile(rows, self.width, self.lanes, self.dtype)

    def _at(self, number: Expr, rows: int, row: int, column: Expr) -> Expr:
        return (number * B.i64(rows) + B.i64(row)) * B.i64(self.width) + column


def emit_dots(
    rows: int,
    width: int,
    lanes: int,
    depth: Extent,
    left: Callable[[int, Expr], Expr],
    right: Callable[[Expr, Expr], Expr],
    dtype: str = "float32",
) -> list[Buffer]:
    """``rows`` x ``width`` sums over a depth whose elements lie behind each other in both factors.

    Vectors run along the depth, so that each sum is a vector of ``lanes`` partial sums until the end.

    Args:
        rows, width: of the tile; ``width`` is a power of two, or a multiple of ``DOT_COLUMNS``.
        lanes: of a vector.
        depth: its extent.
        left: an element, by the row of the tile and the place of the depth.
        right: an element, by the place of the depth and the column of the tile.
        dtype: of the sums.
    """
    tile = _Tile(rows, width, 1, dtype)
    results = tile.buffers("dots")
    count = min(width, DOT_COLUMNS)
    steps = as_expr(depth) // B.i64(lanes) if not isinstance(depth, int) else depth // lanes
    with times("serial", width // count, "group") as group:
        first = group * B.i64(count)

        def term(i: int, at: list[Expr], c: Expr) -> Expr:
            k = at[0] * B.i64(lanes) + tir.floormod(c, B.i64(lanes))
            return left(i, k) * right(k, first + tir.floordiv(c, B.i64(lanes)))

        partial = _dots_of(rows, count * lanes, lanes, steps, term, dtype)
        for i, line in enumerate(partial):
            T.buffer_store(results[i], _folded(line, count, lanes), [_places(first, count)])
        if isinstance(depth, int) and depth % lanes == 0:
            return results
        with times("serial", as_expr(depth) - as_expr(steps) * B.i64(lanes), "rest") as rest:
            k = as_expr(steps) * B.i64(lanes) + rest
            for line in range(rows):
                with B.loop("unroll", count, "c") as c:
                    so_far = compat.load(results[line], [first + c])
                    B.store(results[line], so_far + left(line, k) * right(k, first + c), [first + c])
    return results


def _dots_of(rows: int, width: int, lanes: int, steps: Extent, term: Term, dtype: str) -> list[Buffer]:
    """The vectors of partial sums of ``emit_dots``; totals of blocks beside them, which few tiles are too few for."""
    blocks = blocks_of([steps])
    if blocks is None:
        return emit_sums(rows, width, lanes, [steps], term, dtype)
    tile = _Tile(rows, width, lanes, dtype)
    totals = tile.buffers("totals")
    tile.clear(totals)
    with times("serial", blocks.count, "block") as block:
        sums = emit_sums(rows, width, lanes, [steps], term, dtype, block=(blocks, block))
        tile.each(totals, lambda i, c: compat.load(totals[i], [c]) + compat.load(sums[i], [c]))
    return totals


def _folded(line: Buffer, count: int, lanes: int) -> Expr:
    """The sums of each ``lanes`` elements of a buffer that has ``count`` times as many, as a vector: halves are added.

    They are read vector by vector, as they were written: else LLVM keeps them in memory in the loop before.
    """
    dtype = compat.buffer_dtype(line)
    sums = [compat.load(line, [_places(B.i64(c * lanes), lanes)]) for c in range(count)]
    while lanes > 1:
        half = lanes // 2
        low = [c * lanes + v for c in range(count) for v in range(half)]
        lower, upper = _shuffled(sums, low), _shuffled(sums, [at + half for at in low])
        folded, lanes, places = B.stack([count * half], dtype, "half"), half, _places(B.i64(0), count * half)
        T.buffer_store(folded, lower + upper, [places])
        sums = [compat.load(folded, [places])]
    return sums[0] if len(sums) == 1 else _shuffled(sums, range(count))


def _shuffled(vectors: Sequence[Expr], order: Iterable[int]) -> Expr:
    """Return a vector of elements of others, which are numbered one behind the other."""
    return tir.Shuffle(list(vectors), [compat.const(at, "int32") for at in order])


def _places(first: Expr, count: int) -> Expr:
    """Neighbouring places; of a single one the place itself."""
    return vector(first, count) if count > 1 else first


class _Tile:
    """Rows of a tile, a buffer for each: TVM asks the runtime for memory where one has 1 KiB.

    A vector that has more elements than the CPU's is divided by LLVM in its last steps, and takes less time until
    then. But what is written as several vectors and read as one, or the other way, it may keep in memory.
    """

    def __init__(self, rows: int, width: int, lanes: int, dtype: str):
        self.rows, self.width, self.lanes, self.dtype = rows, width, lanes, dtype

    def buffers(self, name: str) -> list[Buffer]:
        """Buffers that LLVM makes registers of."""
        return [B.stack([self.width], self.dtype, f"{name}{i}") for i in range(self.rows)]

    def clear(self, buffers: Sequence[Buffer]) -> None:
        """Store zeros everywhere."""
        self.each(buffers, lambda i, c: compat.const(0, self.dtype))

    def each(
        self,
        buffers: Sequence[Buffer],
        value: Callable[[int, Expr], Expr],
        to: Callable[[int, Expr], tuple[Buffer, Expr]] | None = None,
    ) -> None:
        """Store the value of a row and a column everywhere, or in the place that ``to`` tells."""
        for i, row in enumerate(buffers):
            with B.loop("unroll", self.width // self.lanes, "j") as j:
                with B.loop("vectorized", self.lanes, "v") as v:
                    column = j * B.i64(self.lanes) + v
                    buffer, place = (row, column) if to is None else to(i, column)
                    B.store(buffer, value(i, column), [place])

    def each_vector(
        self, buffers: Sequence[Buffer], value: Callable[[int, Expr, Expr], Expr], lanes: int
    ) -> None:
        """Store the value of a row, the first column of a vector and what is there, everywhere."""
        for i, row in enumerate(buffers):
            with B.loop("unroll", self.width // lanes, "j") as j:
                place = vector(j * B.i64(lanes), lanes)
                B.store(row, value(i, j * B.i64(lanes), compat.load(row, [place])), [place])


def each_tile(count: Extent, tile: int, whole: bool, visit: Callable[[Expr, Expr, int], None]) -> None:
    """Emit a loop over tiles of rows, the last of which overlaps the one before; of few rows, single ones.

    Args:
        count: the rows.
        tile: rows of a tile.
        whole: whether they are known to be a multiple of that.
        visit: what is done for a tile: its number, its first row, and its rows.
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
    """Emit what is done for a panel of packed columns, by how many of them are results: fewer in the last panel."""
    tail = columns % width
    if tail and columns > width:
        B.either(tir.EQ(panel, B.i64(columns // width)), lambda: visit(tail), lambda: visit(width))
    else:
        visit(tail or width)


@contextmanager
def _loops(loops: Iterable[tuple[str, Extent]]) -> Iterator[list[Expr]]:
    """Nested loops, of a kind and an extent each."""
    with ExitStack() as stack:
        yield [stack.enter_context(times(kind, extent, f"k{i}")) for i, (kind, extent) in enumerate(loops)]
