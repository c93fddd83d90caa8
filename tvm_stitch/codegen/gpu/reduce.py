# SPDX-License-Identifier: Apache-2.0
"""Reduce over the threads of a row: warp shuffles, then shared memory across the row's warps."""

from __future__ import annotations

from collections.abc import Sequence

from ... import compat
from ...compat import Expr, tir
from ...graph.dtype import carried_dtype
from ...graph.ir import Operator
from .. import builder as B
from ..combine import accumulator_dtype, combine, in_order
from ..evaluator import convert


def shuffle_reduce(op: Operator, value: Expr, lanes: int) -> Expr:
    """Fold ``value`` over groups of ``lanes`` neighbouring lanes (a power of two); every lane gets the result."""
    dtype = compat.dtype_of(value)
    moved = carried_dtype(dtype)
    offset = lanes // 2
    while offset:
        carried = B.cell(convert(value, moved), "carry")
        shuffle = compat.shuffle_xor(moved, carried, offset)
        # In a cell of its own: C evaluates the second operand of && and || only where the first leaves it open.
        other = B.cell(shuffle, "other")
        value = B.cell(combine(op.combiner or "", convert(carried, dtype), convert(other, dtype)), "fold")
        offset //= 2
    return value


def row_reduce(
    ops: Sequence[Operator], partials: Sequence[Expr], threads: int, rows: int, lane: Expr, slot: Expr
) -> list[Expr]:
    """Fold each partial over the ``threads`` of a row.

    Args:
        ops: the reductions of one pass, folded together so that they share one barrier.
        partials: each thread's partial result.
        threads: threads a row (a power of two); ``rows`` rows in the block.
        lane, slot: the thread's index in its row, the row's index in the block.

    Returns: per reduction its result, known to every thread of the row.
    """
    folded = [shuffle_reduce(op, p, min(threads, 32)) for op, p in zip(ops, partials)]
    if threads <= 32:
        return folded
    warps = threads // 32
    buffers = []
    for op in ops:
        dtype = carried_dtype(op.output.dtype)
        buffers.append(B.local([rows, warps], dtype, "partial", scope="shared"))
    zero = compat.const(0, "int64")
    for buffer, value in zip(buffers, folded):
        with B.when(tir.EQ(tir.floormod(lane, B.i64(32)), zero)):
            B.store(
                buffer, convert(value, compat.buffer_dtype(buffer)), [slot, tir.floordiv(lane, B.i64(32))]
            )
    B.evaluate(compat.intrinsic("int32", "tvm_storage_sync", compat.string("shared")))
    results = []
    for op, buffer in zip(ops, buffers):
        dtype = accumulator_dtype(op)
        if warps <= 8 or warps & (warps - 1):
            parts = [convert(B.fetch(buffer, slot, w), dtype) for w in range(warps)]
            results.append(B.cell(in_order(op, parts), "total"))
        else:
            own = B.cell(convert(B.fetch(buffer, slot, tir.floormod(lane, B.i64(warps))), dtype), "part")
            results.append(shuffle_reduce(op, own, warps))
    return results
