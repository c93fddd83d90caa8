# SPDX-License-Identifier: Apache-2.0
"""One sweep that computes maxima, and sums relative to a thread's running maximum (online softmax)."""

from __future__ import annotations

from collections.abc import Sequence

from ...compat import Buffer, Expr, tir
from ...graph.ir import Operator
from ...graph.names import short_name
from ...plan.iteration.loops import Leaf, RowLoop
from .. import builder as B
from ..combine import accumulator_dtype, in_pairs
from ..evaluator import convert
from .reduce import WARP, as_bound, shuffle_reduce
from .sweep import SweepEmitter


def online_partials(emitter: SweepEmitter, passes: Sequence[RowLoop]) -> tuple[list[Operator], list[Expr]]:
    """Return the reductions of all passes, and a thread's partial results.

    Maxima are those of the thread's warp, and sums are relative to them. Row values that depend on a thread's running
    maximum are forgotten.
    """
    cm, rescaled = emitter.mapping.of(passes[0].columns), emitter.stage.rescaled
    accumulators = [emitter.accumulators(p) for p in passes]
    held = {op: acc for p, accs in zip(passes, accumulators) for op, acc in zip(p.reduces, accs)}
    maxima = dict.fromkeys(rescaled.values())
    seen = {op: B.local([1], accumulator_dtype(op), f"{short_name(op)}_seen") for op in maxima}
    for op in maxima:
        B.store(seen[op], _whole(op, held[op]), [B.i64(0)])  # nothing seen yet
    for key in passes[0].row_values:
        emitter.eval.bind_row(key)
    emitter.bind_independent()
    independent = set(emitter.stage.schedule.independent)
    relative = [key for p in passes[1:] for key in p.row_values if key not in independent]
    with B.loop("serial", cm.steps, "step") as step:
        fresh: list[Leaf] = []
        for i, p in enumerate(passes):
            if i == 1:
                for op in maxima:
                    _rescale(emitter, op, B.cell(_whole(op, held[op]), "greatest"), seen[op], held)
                emitter.eval.at_column(None)
                for key in relative:
                    emitter.eval.bind_row(key)
            fresh += emitter.step(p, cm, step, accumulators[i], {})
        for leaf in dict.fromkeys(fresh):
            del emitter.load_tiles[leaf]
    emitter.end_sweep()
    emitter.eval.forget(relative)
    for op in maxima:
        greatest = shuffle_reduce(op, B.fetch(seen[op], 0), min(emitter.mapping.threads, WARP))
        _rescale(emitter, op, greatest, seen[op], held)
    ops = [op for p in passes for op in p.reduces]
    return ops, [
        B.fetch(seen[op], 0) if op in maxima else B.cell(_whole(op, held[op]), "partial") for op in ops
    ]


def _whole(op: Operator, acc: Buffer) -> Expr:
    """Fold a thread's accumulators."""
    (size,) = acc.shape
    return in_pairs(op, [B.fetch(acc, e) for e in range(int(size))])


def _rescale(
    emitter: SweepEmitter, maximum: Operator, greatest: Expr, seen: Buffer, held: dict[Operator, Buffer]
) -> None:
    """Rescale sums that are relative to the maximum ``seen`` so far, to make them relative to ``greatest``.

    If nothing above -inf was seen, sums are 0, or nan. They stay so, because they are scaled by 0.
    """
    bound = B.cell(as_bound(greatest), "bound")
    old = B.cell(B.fetch(seen, 0), "old")
    for op, its in emitter.stage.rescaled.items():
        if its is not maximum:
            continue
        dtype = accumulator_dtype(op)
        factor = B.cell(tir.exp(convert(old - bound, dtype)), "factor")
        (size,) = held[op].shape
        for e in range(int(size)):
            B.store(held[op], B.fetch(held[op], e) * factor, [B.i64(e)])
    B.store(seen, greatest, [B.i64(0)])
    emitter.eval.set_row_value((maximum, emitter.al.row_point), bound)
