# SPDX-License-Identifier: Apache-2.0
"""Transposed inputs on a GPU: patches of some rows and columns, loaded along the one axis and used along the other.

Neighbouring columns of a row are far apart in such an input, and neighbouring rows next to each other. A warp that
loads a row of it moves a sector of 32 bytes for every element. So a block takes several rows and loads its patch of
them with neighbouring threads at neighbouring rows. It reads its columns from shared memory.

Without a reduction a patch is 32 to 128 columns wide, whichever leaves fewest threads idle. With a reduction it holds
whole rows, as many as share out evenly among the multiprocessors. If two blocks of at most half a line do not fit a
multiprocessor, a cluster shares rows: of 4,096 columns of float32 each of 8 blocks holds an eighth of 32 rows. Sizes
are static. Only reads are transposed: results are written in the order of their rows.
"""

from __future__ import annotations

from ...config import StitchConfig
from ...device import DeviceModel
from ...graph.extent import ByExtent
from ..gpu.mapping import ColumnMapping, RowMapping
from ..gpu.patches import patch_bytes
from ..gpu.tile import MOST_BLOCKS, vector_length
from ..iteration.alignment import Alignment
from ..rows.candidate import Candidate, once_seconds
from ..rows.transposed import Room, TransposedRows, transposed_rows


def propose(alignment: Alignment, device: DeviceModel, config: StitchConfig) -> Candidate | None:
    """Propose blocks that transpose patches of a graph's inputs.

    Return None if no input is transposed, or no block holds a patch.

    The estimate leaves out the exchange of a cluster: other blocks of the multiprocessor hide it.
    """
    transposed = transposed_rows(alignment, device)
    if transposed is None:
        return None
    mapping = _whole_rows(transposed, device) if alignment.graph.reduces else _pieces(transposed, device)
    if mapping is None:
        return None
    seconds = once_seconds(transposed.alignment, transposed.schedule, device)
    return Candidate(transposed.alignment, transposed.schedule, mapping, seconds)


def _pieces(transposed: TransposedRows, device: DeviceModel) -> RowMapping | None:
    """Return a mapping to patches of rows that are not reduced, a block each."""
    alignment, sched, columns, rows = (
        transposed.alignment,
        transposed.schedule,
        transposed.columns,
        transposed.rows,
    )
    threads = device.choices.transposed_threads
    vector = vector_length(alignment, sched, columns, device)
    wanted = -(-min(columns, device.choices.transposed_columns) // (threads * vector))
    # Another number leaves fewer threads idle here: for 96 columns two pieces of 64 are a third too many, of 196
    # four.
    chunks = min(
        (wanted, wanted + 1, *range(1, wanted)), key=lambda n: -(-columns // (threads * vector * n)) * n
    )
    splits = -(-columns // (threads * vector * chunks))
    mapping = RowMapping(
        threads,
        device.choices.transposed_rows[0],
        ByExtent([(columns, ColumnMapping(vector, chunks))]),
        row_splits=splits,
        transposed=transposed.leaves,
    )
    fits = patch_bytes(sched, mapping) <= device.shared_per_sm // 4
    return mapping if fits and -(-rows // mapping.rows_per_block) * splits <= MOST_BLOCKS else None


def _whole_rows(transposed: TransposedRows, device: DeviceModel) -> RowMapping | None:
    """Return a mapping to patches of whole rows. A cluster of blocks shares rows of which too few fit a block."""
    room = Room(transposed, device)
    wanted = room.row_counts

    def held(splits: int) -> list[RowMapping]:
        mappings = (room.mapping(rows, splits) for rows in wanted)
        return [m for m in mappings if m is not None and room.resident(m)]

    def preference(mapping: RowMapping) -> tuple[bool, int]:
        """Rank mappings: whole lines of memory first, then few rows for the multiprocessor that has most of them."""
        rows = mapping.rows_per_block
        most = -(-transposed.rows // (rows * device.sms)) * rows
        return rows * room.narrowest < device.choices.transposed_line_bytes, most

    alone = held(1)
    several = [m for m in alone if room.resident(m) >= 2]
    if several and not preference(best := min(several, key=preference))[0]:
        return room.bounded(best)
    shared = [m for n in room.cluster_sizes() for m in held(n)]
    for least in device.choices.transposed_resident if shared else ():
        fitting = [m for m in shared if room.resident(m) >= least]
        if fitting:
            return room.bounded(min(fitting, key=lambda m: (-m.rows_per_block, m.row_splits)))
    return room.bounded(min(several or alone, key=preference)) if alone else None
