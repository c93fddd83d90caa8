# SPDX-License-Identifier: Apache-2.0
"""What a convolution's kernel does where sums are divided: behind a barrier it adds them up, and goes on with those.

Of few splits each is a block of a cluster, which finds the others' tiles in their shared memory. More are written to
device memory, and the barrier goes across the grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...codegen import builder as B
from ...compat import Buffer, Expr, T, tir
from ...device import DeviceModel
from ...graph.extent import product
from .epilogue import TileEvaluator
from .positions import Places, quotient
from .sources import sources

AT_ONCE = 16
"""Loads of a thread that are on their way together."""

EVALUATED = 8
"""Times that an epilogue is written out at most, for vectors that a thread loads together."""

VECTOR = 4
"""Floats of a load, where there are so many neighbours."""


@dataclass(frozen=True)
class ByCluster:
    """The splits of a tile are blocks of a cluster, which read each other's sums in shared memory.

    Attributes:
        splits: how many there are.
    """

    splits: int


@dataclass(frozen=True)
class ByGrid:
    """All blocks write their splits, wait for each other, and share out what is to be added up.

    Attributes:
        device: on which they run.
        splits: how many there are.
        width: neighbouring floats of a load; images and channels may end among them.
        at_once: splits of which a thread loads the same place together.
        vectors: of a split that it loads together.
    """

    device: DeviceModel
    splits: int
    width: int
    at_once: int
    vectors: int

    @staticmethod
    def of(device: DeviceModel, divided: Sequence[int], lanes: int, threads: int) -> ByGrid:
        """Of so many loads as a thread has to do, and may have on their way together.

        Args:
            device: on which blocks run.
            divided: extents of the splits and, behind their number, of the result.
            lanes: places of which an epilogue is evaluated at once.
            threads: of all blocks.
        """
        splits, elements = divided[0], math.prod(divided[1:])
        width = VECTOR if elements % VECTOR == 0 else 1
        at_once = -(-splits // -(-splits // AT_ONCE))
        needed = -(-elements // (width * threads))
        vectors = min(needed, AT_ONCE // at_once, max(1, EVALUATED * lanes // width))
        return ByGrid(device, splits, width, at_once, vectors)


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
        """Return the sums over all blocks of the floats from a place of shared memory on, in registers."""
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
    splits: Buffer,
    whole: Sequence[Expr],
    result: Buffer | TileEvaluator,
    lanes: int,
    by: ByGrid,
    grid: Grid,
) -> None:
    """Behind a barrier, add up the splits of every place of the result; store the sums, or an epilogue's results.

    Args:
        splits: ``<splits, images, channels, places...>``, which all blocks have written when they meet at the barrier.
        whole: the extents without the splits.
        result: of the sums, flat; or what evaluates an epilogue of them.
        lanes: neighbouring places, of which an image's are a multiple, of which that is evaluated at once.
        by: what a thread loads together.
        grid: shares vectors out.
    """
    vectors = B.cell(tir.floordiv(product(whole), B.i64(by.width)), "vectors")
    step = B.cell(grid.blocks * B.i64(grid.threads), "step")
    # Before the barrier, where blocks wait.
    of_turn = step * B.i64(by.vectors)
    turns = B.cell(quotient(vectors + of_turn - B.i64(1), of_turn), "turns")
    B.evaluate(T.cuda.grid_sync())
    divided, sums = B.flat_view(splits), B.local([by.vectors * by.width], "float32", "sums")
    with B.loop("serial", turns, "i") as i:
        first = i * of_turn + grid.block * B.i64(grid.threads) + grid.thread
        own = [B.cell(first + step * B.i64(k), "vector") for k in range(by.vectors)]
        # One condition around all of a vector: other operands of its epilogue are on their way with the splits. Several
        # vectors are loaded together, where each has a condition later.
        with B.when(tir.LT(own[0], vectors)):
            _add(divided, own, vectors, sums, by)
            for k, vector in enumerate(own):
                with B.when(tir.LT(vector, vectors) if k else None):
                    _finish(result, sums, k * by.width, vector, by.width, whole, lanes)


def _add(divided: Buffer, own: Sequence[Expr], vectors: Expr, sums: Buffer, by: ByGrid) -> None:
    """Add up all splits of vectors, in their order.

    What lies behind the last vector or split is another's, read again and left out: a condition around loads would let
    them come one by one.
    """
    last = vectors - B.i64(1)
    starts = [tir.min(vector, last) if k else vector for k, vector in enumerate(own)]
    rounds, left = -(-by.splits // by.at_once), by.splits % by.at_once
    of_split = by.vectors * by.width
    parts = B.local([by.at_once * of_split], "float32", "parts")
    with B.loop("unroll", of_split, "v") as v:
        B.store(sums, tir.const(0, "float32"), [v])
    with B.loop("serial", rounds, "some") as some:
        of_round = [some * B.i64(by.at_once) + B.i64(k) for k in range(by.at_once)]
        for k, split in enumerate(of_round):
            read = tir.min(split, B.i64(by.splits - 1)) if left else split
            for n, start in enumerate(starts):
                with B.loop("vectorized", by.width, "v") as v:
                    part = B.fetch(divided, (read * vectors + start) * B.i64(by.width) + v)
                    B.store(parts, part, [B.i64(k * of_split + n * by.width) + v])
        for k, split in enumerate(of_round):
            with B.loop("unroll", of_split, "v") as v:
                before = B.fetch(sums, v)
                added = before + B.fetch(parts, B.i64(k * of_split) + v)
                is_split = tir.LT(split, B.i64(by.splits))
                B.store(sums, tir.Select(is_split, added, before) if left else added, [v])


def _finish(
    result: Buffer | TileEvaluator, sums: Buffer, start: int, vector: Expr, width: int, whole: Sequence[Expr],
    lanes: int,
) -> None:  # fmt: skip
    """Store the sums of a vector, or an epilogue of them, from ``start`` on."""
    if not isinstance(result, TileEvaluator):
        with B.loop("vectorized", width, "v") as v:
            B.store(result, B.fetch(sums, B.i64(start) + v), [vector * B.i64(width) + v])
        return
    _, channels, *places = whole
    of_image = B.cell(tir.floordiv(product(places), B.i64(lanes)), "of_image")
    for part in range(width // lanes):
        some = B.cell(vector * B.i64(width // lanes) + B.i64(part), "part")
        row = B.cell(quotient(some, of_image), "row")
        image = B.cell(quotient(row, channels), "image")
        at = row - image * channels, some - row * of_image
        result.emit(sums, B.i64(start + part * lanes), Places(whole, image, *at, of_image, lanes))
