# SPDX-License-Identifier: Apache-2.0
"""What a convolution's kernel does behind a barrier where sums are divided: it adds them up, and goes on with those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..codegen import builder as B
from ..compat import Buffer, Expr, tir
from ..graph.extent import ceildiv, product
from .cuda_epilogue import TileEvaluator
from .cuda_places import Places, quotient


@dataclass(frozen=True)
class Grid:
    """The blocks of a launch and the threads of each; which of them run."""

    blocks: Expr
    threads: int
    block: Expr
    thread: Expr


def add_up(
    splits: Buffer, whole: Sequence[Expr], result: Buffer | TileEvaluator, lanes: int, grid: Grid
) -> None:
    """Add up the splits of every place of the result, and store the sums, or what an epilogue makes of them.

    Args:
        splits: ``<splits, images, channels, places...>``, which all blocks have written.
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
    divided, sums, part = B.flat_view(splits), *(B.local([lanes], "float32", n) for n in ("sums", "part"))
    with B.loop("serial", ceildiv(vectors, step), "i") as i:
        vector = B.cell(i * step + grid.block * B.i64(grid.threads) + grid.thread, "vector")
        with B.when(tir.LT(vector, vectors)):
            with B.loop("vectorized", lanes, "v") as v:
                B.store(sums, B.fetch(divided, vector * B.i64(lanes) + v), [v])
            with B.loop("serial", count - B.i64(1), "split") as split:
                with B.loop("vectorized", lanes, "v") as v:
                    begin = ((split + B.i64(1)) * vectors + vector) * B.i64(lanes)
                    B.store(part, B.fetch(divided, begin + v), [v])
                with B.loop("unroll", lanes, "v") as v:
                    B.store(sums, B.fetch(sums, v) + B.fetch(part, v), [v])
            if isinstance(result, TileEvaluator):
                row = B.cell(quotient(vector, of_image), "row")
                image = B.cell(quotient(row, channels), "image")
                at = row - image * channels, vector - row * of_image
                result.emit(sums, B.i64(0), Places(whole, image, *at, of_image, lanes))
            else:
                with B.loop("vectorized", lanes, "v") as v:
                    B.store(result, B.fetch(sums, v), [vector * B.i64(lanes) + v])
