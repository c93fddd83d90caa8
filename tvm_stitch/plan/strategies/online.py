# SPDX-License-Identifier: Apache-2.0
"""Long rows that are only reduced, to maxima and to sums relative to these: one sweep takes all (online softmax).

A thread sums relative to the greatest element that it has seen. It scales its sums when it sees a greater one
(Milakov and Gimelshein, 2018). So a row need not stay anywhere, one block has it all, and small blocks hide each
other's pauses.

On an H200 cross-entropy of bfloat16 takes 64, 64 and 68 us for 65,536, 131,072 and 262,144 columns. With rows in
shared memory of a cluster it took 75, 77 and 79 us. With an accumulator for each position in a vector, all of which
are scaled, it took 72, 73 and 70 us.
"""

from __future__ import annotations

from ... import compat
from ...config import StitchConfig
from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import ByExtent, as_expr
from ..gpu.mapping import ColumnMapping, RowMapping, Storage
from ..gpu.tile import vector_length, words_of
from ..iteration.alignment import Alignment
from ..iteration.loops import Keep, LoopNest, is_streamed, schedule
from ..iteration.rescaled import rescaled_sums
from ..rows.candidate import Candidate, excess_seconds, once_seconds


def propose(alignment: Alignment, device: DeviceModel, config: StitchConfig) -> Candidate | None:
    """Propose one sweep for many long rows, if it takes all reductions, or None for others."""
    rows = compat.int_value(as_expr(alignment.domain.rows))
    if rows is None or rows < device.sms or alignment.domain.flat:
        return None
    sched = schedule(alignment, Keep.NOTHING)
    if not takes_one_sweep(alignment, sched):
        return None
    (columns,) = sched.spaces
    loads = {leaf for p in sched.passes for leaf in p.loads if is_streamed(alignment.domain.rows, leaf)}
    if not isinstance(columns, int):
        return None
    if sum(columns * item_bytes(t.dtype) for t, _ in loads) <= device.choices.online_row_bytes:
        return None
    vector = vector_length(alignment, sched, columns, device)
    words = vector * sum(words_of(t.dtype) for t, _ in loads)
    vectors = (
        device.choices.online_vectors
        if words * device.choices.online_vectors <= device.choices.online_words
        else 1
    )
    threads, resident = device.choices.online_threads, device.choices.online_resident
    if words * vectors > device.choices.online_words:  # registers of as many inputs leave fewer blocks
        resident = max(1, int(resident * device.choices.online_words / (words * vectors)))
    steps = -(-columns // (vectors * vector * threads))
    mapping = RowMapping(
        threads,
        1,
        ByExtent([(columns, ColumnMapping(vector, vectors, steps))]),
        storage=Storage.STEPS,
        blocks_per_sm=resident,
    )
    once = once_seconds(alignment, sched, device) + excess_seconds(alignment, device)
    return Candidate(alignment, sched, mapping, device.choices.online_time * once)


def takes_one_sweep(alignment: Alignment, sched: LoopNest) -> bool:
    """Return whether all passes but the first only take sums relative to its maxima, over the same columns.

    A single pass reads a row once in any case.
    """
    passes = sched.passes
    if len(passes) < 2 or len(sched.spaces) > 1 or any(p.outputs or p.cross_row for p in passes):
        return False
    rescaled = rescaled_sums(alignment, sched)
    return all(op in rescaled for p in passes[1:] for op in p.reduces)
