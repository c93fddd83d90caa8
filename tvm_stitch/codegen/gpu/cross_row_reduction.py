# SPDX-License-Identifier: Apache-2.0
"""Reductions across rows on a GPU: accumulators of a thread, sums of a block, totals of the grid.

A thread accumulates over all its rows in registers. At the end of a stage the block combines its threads' sums in a
fixed order. It writes one partial result for each result to scratch. So the result does not vary from run to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ... import compat
from ...compat import Buffer, Expr, tir
from ...graph.extent import unflatten
from ...graph.ir import Operator
from ...graph.names import short_name
from ...plan.gpu.mapping import ColumnMapping, RowMapping
from ...plan.layout import SharedBuffer
from .. import builder as B
from ..combine import accumulator_dtype, combine, identity, in_pairs
from ..evaluator import convert
from .reduce import row_reduce


def accumulator(op: Operator, elements: int) -> Buffer:
    """Allocate a thread's accumulators of a reduction, at its start value."""
    acc = B.local([elements], accumulator_dtype(op), f"{short_name(op)}_sum")
    with B.loop("unroll", elements) as e:
        B.store(acc, identity(op), [e])
    return acc


def folded(op: Operator, acc: Buffer) -> Expr:
    """Fold all accumulators of a thread into one value."""
    return B.cell(in_pairs(op, [B.fetch(acc, e) for e in range(int(acc.shape[0]))]), "sum")


def store_scalars(
    ops: Sequence[Operator], accs: Sequence[Buffer], partials: Sequence[Buffer], threads: int, thread: Expr,
    block: Expr, working: Expr | None, most_in_order: int,
) -> None:  # fmt: skip
    """Combine a block's accumulators of reductions to one result. One thread of a working block writes the results."""
    results = row_reduce(
        ops, [folded(op, a) for op, a in zip(ops, accs)], threads, 1, thread, B.i64(0), most_in_order
    )
    with B.when(B.both(tir.EQ(thread, B.i64(0)), working)):
        for result, partial in zip(results, partials):
            _store_partial(partial, result, B.i64(0), block)


def store_columns(
    ops: Sequence[Operator], accs: Sequence[Buffer], partials: Sequence[Buffer], mapping: RowMapping,
    columns: ColumnMapping, extent: int, lane: Expr, slot: Expr, thread: Expr, tile: Expr, block: Expr,
    working: Expr | None, buffers: Mapping[Operator, SharedBuffer],
) -> None:  # fmt: skip
    """Combine the sums of the block's slots, column by column, and write the partial results of its columns.

    ``working`` is false on blocks without a task, which write nothing. Sums go through the ``buffers`` in shared
    memory, one chunk at a time.
    """
    width, slots = mapping.threads * columns.vector, mapping.rows_per_block
    start = tile * B.i64(columns.chunks * width)
    stages = [B.dynamic(buffers[op]) for op in ops] if slots > 1 else []
    for chunk in range(columns.chunks):
        first = start + B.i64(chunk * width)
        if slots == 1:
            for e in range(columns.vector):
                column = first + lane * B.i64(columns.vector) + B.i64(e)
                with B.when(_within(column, extent, mapping, columns, working)):
                    for acc, partial in zip(accs, partials):
                        _store_partial(partial, B.fetch(acc, chunk * columns.vector + e), column, block)
            continue
        for acc, stage in zip(accs, stages):
            for e in range(columns.vector):
                position = slot * B.i64(width) + lane * B.i64(columns.vector) + B.i64(e)
                value = convert(B.fetch(acc, chunk * columns.vector + e), compat.buffer_dtype(stage))
                B.store(stage, value, [position])
        B.block_barrier("shared.dyn")
        block_threads = mapping.threads * slots
        for k in range(-(-width // block_threads)):
            position = thread + B.i64(k * block_threads)
            inside = None if (k + 1) * block_threads <= width else position < B.i64(width)
            column = first + position
            with B.when(B.both(inside, _within(column, extent, mapping, columns, working))):
                for op, stage, partial in zip(ops, stages, partials):
                    dtype = accumulator_dtype(op)
                    sums = [convert(B.fetch(stage, position + B.i64(s * width)), dtype) for s in range(slots)]
                    _store_partial(partial, in_pairs(op, sums, lambda v: B.cell(v, "pair")), column, block)
        B.block_barrier("shared.dyn")


def total(
    ops: Sequence[Operator],
    partials: Sequence[Buffer],
    blocks: Sequence[int],
    threads: int,
    thread: Expr,
    most_in_order: int,
) -> list[Expr]:
    """Return the totals of reductions to one result, from the blocks' partial results. Every thread gets a copy."""
    own = []
    for op, partial, count in zip(ops, partials, blocks):
        acc = accumulator(op, 1)
        for k in range(-(-count // threads)):
            index = thread + B.i64(k * threads)
            inside = None if (k + 1) * threads <= count else index < B.i64(count)
            with B.when(inside):
                stored = compat.load(partial, [B.i64(0)] * (len(partial.shape) - 1) + [index])
                value = convert(stored, accumulator_dtype(op))
                B.store(acc, combine(op.combiner or "", B.fetch(acc, 0), value), [B.i64(0)])
        own.append(B.cell(B.fetch(acc, 0), "own"))
    return row_reduce(ops, own, threads, 1, thread, B.i64(0), most_in_order)


def _within(
    column: Expr, extent: int, mapping: RowMapping, columns: ColumnMapping, working: Expr | None
) -> Expr | None:
    covered = mapping.row_splits * columns.chunks * mapping.threads * columns.vector
    return B.both(None if covered == extent else column < B.i64(extent), working)


def _store_partial(partial: Buffer, value: Expr, result: Expr, block: Expr) -> None:
    shape = [int(e) for e in partial.shape]
    where = [*unflatten(result, shape[:-1]), block]
    B.store(partial, convert(value, compat.buffer_dtype(partial)), where)
