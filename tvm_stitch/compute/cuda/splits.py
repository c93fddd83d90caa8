# SPDX-License-Identifier: Apache-2.0
"""The convolution kernel's code for split sums: behind a barrier it adds them up, and goes on with the totals.

With few splits, each is a block of a cluster, which reads the others' tiles from their shared memory. More splits
are written to device memory, and the barrier spans the grid.
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
from .positions import Positions, quotient
from .sources import sources

VECTOR = 4
"""Floats per load, if there are as many neighbours."""


@dataclass(frozen=True)
class ByCluster:
    """The splits of a tile are blocks of a cluster, which read each other's sums in shared memory.

    Attributes:
        splits: number of splits.
    """

    splits: int


@dataclass(frozen=True)
class ByGrid:
    """All blocks write their splits, wait for each other, and share out the sums to compute.

    Attributes:
        device: the device.
        splits: number of splits.
        width: neighbouring floats of a load. It may cross the end of an image or channel.
        at_once: splits whose elements at one position a thread loads together.
        vectors: vectors of a split that a thread loads together.
    """

    device: DeviceModel
    splits: int
    width: int
    at_once: int
    vectors: int

    @staticmethod
    def of(device: DeviceModel, divided: Sequence[int], lanes: int, threads: int) -> ByGrid:
        """Return the parameters that fit the loads of a thread, and the loads that it may have in flight.

        Args:
            device: the device.
            divided: number of splits, then the extents of the result.
            lanes: positions at which an epilogue is evaluated at once.
            threads: number of threads of all blocks.
        """
        splits, elements = divided[0], math.prod(divided[1:])
        width = VECTOR if elements % VECTOR == 0 else 1
        at_once = -(-splits // -(-splits // device.choices.split_loads_at_once))
        needed = -(-elements // (width * threads))
        vectors = min(
            needed,
            device.choices.split_loads_at_once // at_once,
            max(1, device.choices.split_evaluations * lanes // width),
        )
        return ByGrid(device, splits, width, at_once, vectors)


@dataclass(frozen=True)
class Grid:
    """The blocks of a launch, the threads of each, and the indices of the running ones."""

    blocks: Expr
    threads: int
    block: Expr
    thread: Expr


@dataclass(frozen=True)
class Cluster:
    """Blocks that each have a split of a tile in shared memory, and the running block's rank. Or a single block."""

    blocks: int
    rank: Expr

    @staticmethod
    def meet() -> None:
        """Emit a wait for all threads of the cluster."""
        B.evaluate(T.ptx.barrier.cluster.arrive.release.aligned())
        B.evaluate(T.ptx.barrier.cluster.wait.acquire.aligned())

    def added_up(self, shared: Buffer, start: Expr, lanes: int) -> Buffer:
        """Return the sums over all blocks of the floats from position ``start`` of shared memory on, in registers."""
        sums = B.whole(B.local([lanes], "float32", "sums"))
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
    """Emit a barrier, and the sums of the splits at every position. Store the sums, or an epilogue's results.

    Args:
        splits: ``<splits, images, channels, positions...>``. All blocks have written it when they reach the
            barrier.
        whole: extents without the splits.
        result: flat buffer of the sums, or the evaluator of an epilogue of them.
        lanes: neighbouring positions at which an epilogue is evaluated at once. An image's positions are a
            multiple.
        by: the loads of a thread.
        grid: shares vectors out.
    """
    vectors = B.cell(tir.floordiv(product(whole), B.i64(by.width)), "vectors")
    step = B.cell(grid.blocks * B.i64(grid.threads), "step")
    # Computed before the barrier, where blocks wait.
    of_turn = step * B.i64(by.vectors)
    turns = B.cell(quotient(vectors + of_turn - B.i64(1), of_turn), "turns")
    B.evaluate(T.cuda.grid_sync())
    divided, sums = B.flat_view(splits), B.local([by.vectors * by.width], "float32", "sums")
    with B.loop("serial", turns, "i") as i:
        first = i * of_turn + grid.block * B.i64(grid.threads) + grid.thread
        own = [B.cell(first + step * B.i64(k), "vector") for k in range(by.vectors)]
        # A single vector has one condition around everything, so that other operands of its epilogue are in flight
        # with the splits. Several vectors are loaded together, and each has a condition later.
        with B.when(tir.LT(own[0], vectors)):
            _add(divided, own, vectors, sums, by)
            for k, vector in enumerate(own):
                with B.when(tir.LT(vector, vectors) if k else None):
                    _finish(result, sums, k * by.width, vector, by.width, whole, lanes)


def _add(divided: Buffer, own: Sequence[Expr], vectors: Expr, sums: Buffer, by: ByGrid) -> None:
    """Emit the sums of all splits of vectors, in order.

    Loads behind the last vector or split repeat another one, and their values are dropped. A condition around loads
    would serialise them.
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
                    value = B.fetch(divided, (read * vectors + start) * B.i64(by.width) + v)
                    B.store(parts, value, [B.i64(k * of_split + n * by.width) + v])
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
    """Emit stores of the sums of a vector, or of an epilogue's results, from ``start`` on."""
    if not isinstance(result, TileEvaluator):
        with B.loop("vectorized", width, "v") as v:
            B.store(result, B.fetch(sums, B.i64(start) + v), [vector * B.i64(width) + v])
        return
    _, channels, *positions = whole
    of_image = B.cell(tir.floordiv(product(positions), B.i64(lanes)), "of_image")
    for number in range(width // lanes):
        some = B.cell(vector * B.i64(width // lanes) + B.i64(number), "part")
        row = B.cell(quotient(some, of_image), "row")
        image = B.cell(quotient(row, channels), "image")
        at = row - image * channels, some - row * of_image
        result.emit(sums, B.i64(start + number * lanes), Positions(whole, image, *at, of_image, lanes))
