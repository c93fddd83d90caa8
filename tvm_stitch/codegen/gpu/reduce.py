# SPDX-License-Identifier: Apache-2.0
"""Reduce over the threads of a row: warp shuffles, then shared memory across the row's warps.

One barrier between writing and reading partial results is emitted here. TVM adds the barriers that protect a reused
buffer. Placing all of them here would save a few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ... import compat
from ...compat import Expr, tir
from ...graph.dtype import exchanged_dtype
from ...graph.ir import Operator
from .. import builder as B
from ..combine import accumulator_dtype, combine, identity, in_order
from ..evaluator import convert

WARP = 32

Rescaled = Mapping[Operator, Operator]
"""Sums that are relative to a maximum, each with the maximum's operator."""
NOTHING: Rescaled = {}


def shuffle_reduce(op: Operator, value: Expr, lanes: int) -> Expr:
    """Fold ``value`` over groups of ``lanes`` neighbouring lanes (a power of two). Every lane gets the result."""
    dtype = compat.dtype_of(value)
    moved = exchanged_dtype(dtype)
    offset = lanes // 2
    while offset:
        carried = B.cell(convert(value, moved), "carry")
        shuffle = compat.shuffle_xor(moved, carried, offset)
        # In a cell of its own: C evaluates the second operand of && and || only if the first leaves the result open.
        other = B.cell(shuffle, "other")
        value = B.cell(combine(op.combiner or "", convert(carried, dtype), convert(other, dtype)), "fold")
        offset //= 2
    return value


def warp_reduce(
    ops: Sequence[Operator], partials: Sequence[Expr], threads: int, rescaled: Rescaled
) -> list[Expr]:
    """Fold each partial over a row's lanes of a warp. Maxima that sums are relative to are folded already."""
    done = set(rescaled.values())
    return [p if op in done else shuffle_reduce(op, p, min(threads, WARP)) for op, p in zip(ops, partials)]


def row_reduce(
    ops: Sequence[Operator],
    partials: Sequence[Expr],
    threads: int,
    rows: int,
    lane: Expr,
    slot: Expr,
    most_in_order: int,
    rescaled: Rescaled = NOTHING,
    whole_rows: bool = True,
) -> list[Expr]:
    """Fold each partial over the ``threads`` of a row.

    Args:
        ops: the reductions of one pass, folded together so that they share one barrier.
        partials: each thread's partial result.
        threads: threads a row (a power of two).
        rows: rows in the block.
        lane, slot: the thread's index in its row, the row's index in the block.
        most_in_order: the most partial results of other warps that every thread folds one after the other.
        rescaled: sums that are relative to their warp's maximum.
        whole_rows: whether no other block has a segment of the row.

    Returns: per reduction its result, known to every thread of the row.
    """
    folded = warp_reduce(ops, partials, threads, rescaled)
    if threads <= WARP:
        return folded
    warps = threads // WARP
    buffers = {}
    for op in ops:
        dtype = exchanged_dtype(op.output.dtype)
        buffers[op] = B.local([rows, warps], dtype, "partial", scope="shared")
    zero = compat.const(0, "int64")
    for op, value in zip(ops, folded):
        with B.when(tir.EQ(tir.floormod(lane, B.i64(WARP)), zero)):
            moved = convert(value, compat.buffer_dtype(buffers[op]))
            B.store(buffers[op], moved, [slot, tir.floordiv(lane, B.i64(WARP))])
    B.block_barrier()

    def part(op: Operator, warp: Expr) -> Expr:
        return convert(B.fetch(buffers[op], slot, warp), accumulator_dtype(op))

    return fold_partials(ops, warps, threads, lane, part, most_in_order, rescaled, whole_rows)


def fold_partials(
    ops: Sequence[Operator],
    count: int,
    threads: int,
    lane: Expr,
    part: Callable[[Operator, Expr], Expr],
    most_in_order: int,
    rescaled: Rescaled = NOTHING,
    whole_rows: bool = True,
) -> list[Expr]:
    """Return the results of reductions of which every thread of a row can read ``count`` partial results.

    All threads get equal results. A partial result of a rescaled sum is relative to the maximum's partial result of
    the same index. It is scaled to the whole maximum. If a partial maximum is -inf, its sum is 0 (see
    :func:`as_bound`). The sum stays 0 unless the maximum of a whole row is -inf. Then it is nan, as it would be if
    the maximum had been known first.
    """
    whole: dict[Operator, Expr] = {}

    def scaled(op: Operator, index: Expr) -> Expr:
        if op not in rescaled:
            return part(op, index)
        maximum = rescaled[op]
        bound = whole[maximum] if whole_rows else as_bound(whole[maximum])
        apart = convert(part(maximum, index) - bound, accumulator_dtype(op))
        return part(op, index) * tir.exp(apart)

    for op in sorted(ops, key=lambda op: op in rescaled):
        few = count <= (1 if op in rescaled else most_in_order) or threads < WARP
        read = partial(scaled, op)
        whole[op] = (
            in_order(op, [read(B.i64(i)) for i in range(count)]) if few else _fold(op, count, lane, read)
        )
        whole[op] = B.cell(whole[op], "whole")
    return [whole[op] for op in ops]


def as_bound(maximum: Expr) -> Expr:
    """Return the bound that a warp's sum is relative to, given the warp's maximum.

    If the maximum is -inf, the bound is 0, because all terms of the sum are 0 then. Relative to -inf the sum would be
    nan.
    """
    lowest = compat.const(-np.inf, compat.dtype_of(maximum))
    return tir.Select(tir.EQ(maximum, lowest), compat.const(0, compat.dtype_of(maximum)), maximum)


def _fold(op: Operator, count: int, lane: Expr, part: Callable[[Expr], Expr]) -> Expr:
    """Fold partial results by the lanes of every warp. Each lane reads every 32nd."""
    if count < WARP and not count & (count - 1):
        return shuffle_reduce(op, B.cell(part(tir.floormod(lane, B.i64(count))), "part"), count)
    folded = B.local([1], accumulator_dtype(op), "parts")
    B.store(folded, identity(op), [B.i64(0)])
    own = tir.floormod(lane, B.i64(WARP))
    with B.loop("serial", -(-count // WARP), "group") as group:
        index = group * B.i64(WARP) + own
        inside = None if count % WARP == 0 else index < B.i64(count)
        with B.when(inside):
            B.store(folded, combine(op.combiner or "", B.fetch(folded, 0), part(index)), [B.i64(0)])
    return shuffle_reduce(op, B.fetch(folded, 0), WARP)
