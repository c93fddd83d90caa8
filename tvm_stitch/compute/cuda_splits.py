# SPDX-License-Identifier: Apache-2.0
"""What a convolution's kernel does where sums are divided: behind a barrier it adds them up, and goes on with those.

Of few splits each is a block of a cluster, which finds the others' tiles in their shared memory. More are written to
device memory, and the barrier goes across the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..codegen import builder as B
from ..compat import Buffer, Expr, T, tir
from ..graph.extent import ceildiv, product
from .cuda.sources import sources
from .cuda_epilogue import TileEvaluator
from .cuda_places import Places, quotient

AT_ONCE = 8
"""Splits of which a thread loads its places together."""


@dataclass(frozen=True)
class Grid:
    """The blocks of a launch and the threads of each; which of them run."""

    blocks: Expr
    threads: int
    block: Expr
    thread: Expr


@dataclass(frozen=True)
class Cluster:
    """Blocks that each have a split of a tile in shared memory, and which of them runs; or a block on its own."""

    blocks: int
    rank: Expr

    @staticmethod
    def meet() -> None:
        """Wait for all of its threads."""
        B.evaluate(T.ptx.barrier.cluster.arrive.release.aligned())
        B.evaluate(T.ptx.barrier.cluster.wait.acquire.aligned())

    def added_up(self, shared: Buffer, start: Expr, lanes: int) -> Buffer:
        """The sums over all blocks of the floats from a place of shared memory on, in registers."""
        sums = B.local([lanes], "float32", "sums")
        name = f"tvm_stitch_cluster_sums_{self.blocks}_{lanes}"
        code = sources("cluster_sums") + _SUMS.format(name=name, blocks=self.blocks, lanes=lanes)
        at, to = tir.address_of(B.fetch(shared, start)), tir.address_of(B.fetch(sums, 0))
        B.evaluate(T.cuda.func_call(name, at, to, source_code=code))
        return sums


_SUMS = """
__device__ __forceinline__ void {name}(const void* at, void* sums) {{
  tvm_stitch::add_up_of_cluster<{blocks}, {lanes}>((const float*)at, (float*)sums);
}}
"""


def add_up(
    splits: Buffer, whole: Sequence[Expr], result: Buffer | TileEvaluator, lanes: int, grid: Grid
) -> None:
    """Behind a barrier, add up the splits of every place of the result; store the sums, or an epilogue's results.

    Args:
        splits: ``<splits, images, channels, places...>``, which all blocks have written when they meet at the barrier.
        whole: the extents without the splits.
        result: of the sums, flat; or what evaluates an epilogue of them.
        lanes: neighbouring places, of which an image's are a multiple, that a thread computes at once.
        grid: shares them out.
    """
    (images, channels, *places), count = whole, splits.shape[0]
    # Hidden: TVM's simplifier would lose sight of lanes.
    of_image = B.cell(tir.floordiv(product(places), B.i64(lanes)), "of_image")
    vectors = B.cell(images * channels * of_image, "vectors")
    step = B.cell(grid.blocks * B.i64(grid.threads), "step")
    turns = B.cell(
        quotient(vectors + step - B.i64(1), step), "turns"
    )  # before the barrier, where blocks wait
    B.evaluate(T.cuda.grid_sync())
    divided, sums = B.flat_view(splits), B.local([lanes], "float32", "sums")
    with B.loop("serial", turns, "i") as i:
        vector = B.cell(i * step + grid.block * B.i64(grid.threads) + grid.thread, "vector")
        with B.when(tir.LT(vector, vectors)):
            _add(divided, vector, vectors, count, sums, lanes)
            if isinstance(result, TileEvaluator):
                row = B.cell(quotient(vector, of_image), "row")
                image = B.cell(quotient(row, channels), "image")
                at = row - image * channels, vector - row * of_image
                result.emit(sums, B.i64(0), Places(whole, image, *at, of_image, lanes))
            else:
                with B.loop("vectorized", lanes, "v") as v:
                    B.store(result, B.fetch(sums, v), [vector * B.i64(lanes) + v])


def _add(divided: Buffer, vector: Expr, vectors: Expr, count: Expr, sums: Buffer, lanes: int) -> None:
    """Add up all splits of a vector, in their order; ``AT_ONCE`` of them are on their way together.

    Behind the last one they are read again and left out: a condition around loads would let them come one by one.
    """
    parts = B.local([AT_ONCE * lanes], "float32", "parts")
    with B.loop("vectorized", lanes, "v") as v:
        B.store(sums, B.fetch(divided, vector * B.i64(lanes) + v), [v])
    others = B.cell(count - B.i64(1), "others")
    with B.loop("serial", ceildiv(others, AT_ONCE), "some") as some:
        first = B.cell(some * B.i64(AT_ONCE) + B.i64(1), "first")
        for k in range(AT_ONCE):
            split = tir.min(first + B.i64(k), others)
            with B.loop("vectorized", lanes, "v") as v:
                part = B.fetch(divided, (split * vectors + vector) * B.i64(lanes) + v)
                B.store(parts, part, [B.i64(k * lanes) + v])
        for k in range(AT_ONCE):
            with B.loop("unroll", lanes, "v") as v:
                added = B.fetch(sums, v) + B.fetch(parts, B.i64(k * lanes) + v)
                B.store(sums, tir.Select(first + B.i64(k) <= others, added, B.fetch(sums, v)), [v])
