# SPDX-License-Identifier: Apache-2.0
"""Store a tile of sums to memory, directly or through the kernel's epilogue.

The epilogue is evaluated like a stitched kernel's pass over the columns of a row (vector math included). It covers
the rows and columns of a tile, while the tile's sums are in the first-level cache.

Light operators are computed on the registers that hold the sums. Heavy ones are computed in a loop over a tile in
the first-level cache, so that their code occurs once. An epilogue that needs more than a tile (a reduction, rows of
symbolic length) runs behind the whole product, which is then in workspace. The kernel does not allocate that
memory. TVM would compute how much of it is used, and divide by extents that may be 0. With Relay, extents are
static and the kernel allocates it.

The data that a tile reads and writes in its epilogue is prefetched while its sums are computed. Its few
neighbouring columns of each row are too short a stream for the hardware's prefetcher. Example: a 1 x 1 convolution
of 64 to 256 channels with a residual, on 8 x 56 x 56 positions. On one thread of a Xeon with AVX-512 it takes 7.5
instead of 9.3 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ... import compat
from ...codegen import builder as B
from ...codegen.cpu.base import CpuEmitter
from ...codegen.cpu.half import stored_as
from ...codegen.cpu.index_context import Coordinate, IndexContext
from ...codegen.cpu.lanes import LaneWriter
from ...codegen.cpu.tasks import times
from ...compat import Buffer, Expr, tir
from ...device import DeviceModel
from ...graph.classify import is_heavy
from ...graph.dtype import HALF, item_bytes, summed_dtype
from ...graph.extent import Extent, as_expr, same
from ...graph.ir import Access, StitchGraph, Tensor
from ...plan.cpu.tile import choose_cpu_mapping
from ...plan.iteration.alignment import align
from ...plan.iteration.domain import At, Domain, Point
from ...plan.iteration.loops import schedule
from ...plan.kernel import Stage
from ...plan.slices import whole
from ...support.failures import Refusal
from .tiles import CACHE_LINE

Rows = Callable[[Expr], Expr]
"""Maps a row of a tile to its row of the result."""

Vectors = tuple[int, int, int]
"""First column of some vectors, their number, and their width."""


class WriteBack:
    """Stores tiles of a result ``<rows, columns>`` without an epilogue."""

    def __init__(self, output: Tensor, columns: Extent):
        self.output, self.columns = output, columns

    def begin(self, rows: int, width: int, tile: Buffer | None = None) -> None:
        """Emit the preparation of a task. None of its tiles is larger than ``rows`` x ``width``.

        ``tile`` holds the sums for :meth:`store_tile`, line by line.
        """
        self.tile = tile
        self.flat = B.flat_view(self.output.buffer)

    def fetch(self, count: int, rows: Rows, column: Expr, stored: int) -> None:
        """Emit prefetches of the data that :meth:`store` reads and writes in memory, for a tile of ``count`` rows."""
        self._fetch([self.output], count, rows, column, stored)

    def _fetch(self, tensors: Sequence[Tensor], count: int, rows: Rows, column: Expr, stored: int) -> None:
        """Emit prefetches of a tile of tensors ``<rows, columns>``."""
        flat = [(B.flat_view(t.buffer), CACHE_LINE // item_bytes(t.dtype)) for t in tensors]
        with times("serial", count, "i") as i:
            at = rows(i) * as_expr(self.columns) + column
            for buffer, per_line in flat:
                for first in range(0, stored, per_line):
                    B.prefetch(buffer, at + B.i64(first))

    def store(self, sums: Sequence[Buffer], rows: Rows, column: Expr, stored: int, lanes: int) -> None:
        """Emit the stores of a tile from ``column`` on. Only its first ``stored`` columns are results."""
        for i, line in enumerate(sums):
            at = rows(B.i64(i)) * as_expr(self.columns) + column
            _copy(line, self.flat, at, _vectors(stored, lanes))

    def store_tile(
        self, count: Extent, width: int, rows: Rows, column: Expr, stored: int, lanes: int
    ) -> None:
        """Emit the stores of a tile of ``count`` lines of ``width`` sums, which are in the task's buffer."""
        with times("serial", count, "i") as i:
            self._store_line(i * B.i64(width), rows(i), column, stored, lanes)

    def _store_line(self, start: Expr, row: Expr, column: Expr, stored: int, lanes: int) -> None:
        assert self.tile is not None
        at = row * as_expr(self.columns) + column
        _copy(self.tile, self.flat, at, _vectors(stored, lanes), start)


class EpilogueWriteBack(WriteBack):
    """Evaluates an epilogue of one pass over the columns of the result's rows.

    A light epilogue is evaluated on the registers that hold the sums, line by line. A heavy one has too much code
    for that, so it is emitted once, in a loop over the lines of a tile in memory.
    """

    def __init__(self, output: Tensor, columns: int, stage: Stage, stores: bool):
        super().__init__(output, columns)
        self.stage, self.stores = stage, stores
        self.heavy = any(is_heavy(op.value) for op in stage.graph.operators)

    def begin(self, rows: int, width: int, tile: Buffer | None = None) -> None:
        self.tile = tile
        if self.stores:
            super().begin(rows, width, tile)
        if self.heavy and tile is None:
            self.tile = B.stack([rows * width], summed_dtype(self.output.dtype), "tile")

    def fetch(self, count: int, rows: Rows, column: Expr, stored: int) -> None:
        (only,) = self.stage.schedule.passes
        written = [op.output for op, point in only.outputs if point.at is At.FULL]
        read = [tensor for tensor, point in only.loads if point.at is At.FULL and tensor is not self.output]
        stored_sums = [self.output] if self.stores else []
        self._fetch(list(dict.fromkeys([*read, *written, *stored_sums])), count, rows, column, stored)

    def store(self, sums: Sequence[Buffer], rows: Rows, column: Expr, stored: int, lanes: int) -> None:
        if self.stores:
            super().store(sums, rows, column, stored, lanes)
        if not self.heavy:
            for i, line in enumerate(sums):
                self._line(line, B.i64(0), rows(B.i64(i)), column, _vectors(stored, lanes), "unroll")
            return
        assert self.tile is not None
        width = int(sums[0].shape[0])
        for i, line in enumerate(sums):
            _copy(line, self.tile, B.i64(i * width), _vectors(width, lanes))
        with times("serial", len(sums), "i") as i:
            self._line(self.tile, i * B.i64(width), rows(i), column, _vectors(stored, 2 * lanes), "serial")

    def _store_line(self, start: Expr, row: Expr, column: Expr, stored: int, lanes: int) -> None:
        assert self.tile is not None
        if self.stores:
            super()._store_line(start, row, column, stored, lanes)
        vectors = _vectors(stored, 2 * lanes if self.heavy else lanes)
        self._line(self.tile, start, row, column, vectors, "serial" if self.heavy else "unroll")

    def _line(
        self, source: Buffer, start: Expr, row: Expr, column: Expr, vectors: list[Vectors], kind: str
    ) -> None:
        """Emit the epilogue of a line of sums, which begin at ``start`` of a buffer."""
        here = B.bind(row, "line") if compat.free_vars(row) else row
        emitter = _TileEmitter(self.stage, self.output, source)
        for first, count, width in vectors:
            with times(kind, count, "j") as j:
                offset = B.i64(first) + j * B.i64(width)
                emitter.emit_at(here, column + offset, start + offset, width)


class _TileEmitter(CpuEmitter):
    """Evaluates a plan of one pass at neighbouring columns of a row, with the result's sums in a tile."""

    def __init__(self, stage: Stage, result: Tensor, tile: Buffer):
        super().__init__(stage)
        self.result, self.tile = result, tile

    def emit_at(self, row: Expr, column: Expr, offset: Expr, width: int) -> None:
        """Emit the evaluation of ``width`` columns from ``column`` on, whose sums begin at ``offset`` of the tile."""
        (only,) = self.sched.passes
        self.lanes, self.position = None, offset
        self.eval = self.evaluator(row)
        for key in only.row_values:
            self.eval.bind_row(key)
        rows = Coordinate("row", self.domain.rows, self.domain.rows)
        columns = Coordinate("col", only.columns, only.columns)
        rows.move(B.i64(0), row)
        self.lanes = LaneWriter(width, self.signed)
        with self.piece(
            IndexContext(self.domain, rows, columns), columns.move(B.i64(0), column + self.lanes.lane)
        ):
            self.evaluate(only, [])
        self.lanes = None

    def input(self, access: Access, point: Point) -> Expr | None:
        if access.tensor is not self.result or self.lanes is None:
            return super().input(access, point)
        leaf = access.tensor, point
        if leaf not in self.loaded:
            value = compat.load(self.tile, [self.position + self.lanes.lane])
            if self.result.dtype in HALF:  # rounded, as it would be in memory
                value = self._round(tir.Cast("float32", tir.Cast(self.result.dtype, value)))
            self.loaded[leaf] = self.bind(value, "sum")
        return self.loaded[leaf]

    def slot(self) -> list[Expr]:
        raise AssertionError("nothing is kept between passes")

    def emit(self) -> None:
        raise AssertionError("tiles are emitted one by one")


def write_back(
    graph: StitchGraph, output: Tensor, rows: Extent, columns: Extent, device: DeviceModel, stores: bool
) -> WriteBack:
    """Return the write-back that computes an epilogue tile by tile.

    Args:
        graph: the epilogue, with ``output`` as an input.
        output: the product ``<rows, columns>``.
        rows, columns: its extents.
        device: the CPU.
        stores: whether the product is a result too.

    Raises:
        Refusal: if the epilogue needs more than a tile at a time, or has other rows.
    """
    if not isinstance(columns, int):
        raise Refusal("an epilogue of rows of symbolic length")
    alignment = align(graph, device.choices, Domain(rows), pinned=[output])
    nest = schedule(alignment)
    if len(nest.passes) != 1 or nest.final_values or nest.row_outputs or graph.reduces:
        raise Refusal("the epilogue reads more than a tile at a time")
    (only,) = nest.passes
    if not same(only.columns, columns):
        raise Refusal("the epilogue has rows of another length")
    mapping = choose_cpu_mapping(alignment, nest, device)
    return EpilogueWriteBack(output, columns, Stage(whole(alignment), nest, mapping), stores)


def _copy(line: Buffer, to: Buffer, base: Expr, vectors: list[Vectors], start: Expr | None = None) -> None:
    """Emit stores of a line's columns from position ``base`` on. The line begins at ``start`` of its buffer."""
    for first, count, width in vectors:
        with B.loop("unroll", count, "j") as j, B.loop("vectorized", width, "v") as v:
            at = B.i64(first) + j * B.i64(width) + v
            value = compat.load(line, [at if start is None else start + at])
            B.store(to, stored_as(value, compat.buffer_dtype(to)), [base + at])


def _vectors(stored: int, lanes: int) -> list[Vectors]:
    """Return columns as groups of vectors."""
    whole = stored // lanes * lanes
    groups = [(0, whole // lanes, lanes), (whole, 1, stored - whole)]
    return [(first, count, width) for first, count, width in groups if count and width]
