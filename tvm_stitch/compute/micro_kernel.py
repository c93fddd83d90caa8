# SPDX-License-Identifier: Apache-2.0
"""The micro-kernel of products on a CPU: a tile of sums that stay in registers over the whole depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from .. import compat
from ..codegen import builder as B
from ..codegen.cpu_base import times
from ..compat import Buffer, Expr
from ..graph.extent import Extent

Term = Callable[[int, list[Expr], Expr], Expr]
"""What a row's sum gets in a column at a place of the depth."""


def emit_sums(
    rows: int, width: int, lanes: int, depth: Sequence[Extent], term: Term, unrolled: int = 0
) -> list[Buffer]:
    """``rows`` x ``width`` sums over the loops of ``depth``, each row in a buffer.

    Args:
        rows, width: of the tile; ``width`` is a multiple of ``lanes``, or less.
        lanes: of a vector.
        depth: extents of the loops, outermost first.
        term: a product, at a row of the tile, the loops' variables, and a column of the tile.
        unrolled: how many of the innermost loops are unrolled.
    """
    lanes = min(lanes, width)
    # A buffer for each row: TVM asks the runtime for memory where one has 1 KiB, and LLVM makes registers of none.
    sums = [B.stack([width], "float32", f"sums{i}") for i in range(rows)]
    _each(sums, width, lanes, lambda i, c: compat.const(0.0, "float32"))
    with ExitStack() as loops:
        serial = len(depth) - unrolled
        at = [
            loops.enter_context(times("serial" if i < serial else "unroll", extent, f"k{i}"))
            for i, extent in enumerate(depth)
        ]
        _each(sums, width, lanes, lambda i, c: compat.load(sums[i], [c]) + term(i, at, c))
    return sums


def _each(sums: Sequence[Buffer], width: int, lanes: int, value: Callable[[int, Expr], Expr]) -> None:
    for i, row in enumerate(sums):
        with B.loop("unroll", width // lanes, "j") as j, B.loop("vectorized", lanes, "v") as v:
            column = j * B.i64(lanes) + v
            B.store(row, value(i, column), [column])
