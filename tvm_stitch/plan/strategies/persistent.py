# SPDX-License-Identifier: Apache-2.0
"""Persistent clusters that transpose one group of rows after the other and copy the next one's patches meanwhile.

A block that transposes a patch of whole rows waits for all of its loads, then for its reductions, and stores at last.
The next block begins with the same wait. Persistent blocks hide that. Once a patch is in registers, its shared memory
is free. Copies of the next patch fill it while the rows are reduced and stored. Half of the copies are begun at once,
the others between the stores. All at once would fill the queue in front of the first-level cache, through which the
shuffles of reductions go too.

On an H200 a layer norm of 4096 transposed columns of 4096 elements (float32) takes 32.7 us with persistent clusters.
Without them it takes 40 to 42 us, and a copy takes 30.6 us. Persistent clusters are slower with tables of scales read
from memory (41 us, see ``shared_columns``). They are slower with pieces of lines (28 rows a block, 37.6 us). They are
also slower if more clusters are launched than are resident at once (41 us), because the last ones begin when others
end.

Each group of rows of a cluster has its own slots in shared memory for exchanged results. Rows that need more slots
than there is room for have several times as many clusters as are resident.
"""

from __future__ import annotations

from dataclasses import replace

from ...config import StitchConfig
from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import static_extent
from ..gpu.mapping import CrossBlockReduction, RowMapping
from ..gpu.occupancy import OPT_IN_BYTES, blocks_in_shared
from ..gpu.patches import PIECE_BYTES, patch_bytes, pieces
from ..gpu.tile import partial_bytes, tile_words
from ..iteration.alignment import Alignment
from ..iteration.contiguity import rows_vectorizable
from ..iteration.loops import Leaf, LoopNest, is_streamed
from ..rows.candidate import Candidate, once_seconds
from ..rows.transposed import Room, transposed_rows


def propose(alignment: Alignment, device: DeviceModel, config: StitchConfig) -> Candidate | None:
    """Propose persistent clusters for whole rows of transposed inputs, None for others."""
    transposed = transposed_rows(alignment, device)
    if transposed is None or not alignment.graph.reduces:
        return None
    room = Room(transposed, device)
    for candidate in (room.mapping(rows, n) for rows in room.row_counts for n in room.cluster_sizes()):
        if candidate is None:
            continue
        mapping = _persistent(transposed.alignment, transposed.schedule, candidate, device)
        if mapping is not None:
            seconds = device.choices.persistent_time * once_seconds(
                transposed.alignment, transposed.schedule, device
            )
            return Candidate(transposed.alignment, transposed.schedule, mapping, seconds)
    return None


def _persistent(
    alignment: Alignment, sched: LoopNest, mapping: RowMapping, device: DeviceModel
) -> RowMapping | None:
    """Return a mapping of transposed whole rows to persistent clusters, None if it cannot be, or gains nothing.

    Args:
        alignment: a stitch op's.
        sched: its schedule, of one static column space.
        mapping: in which blocks of a cluster share their rows.
        device: a GPU.
    """
    if not device.background_copies or mapping.exchange is not CrossBlockReduction.CLUSTER:
        return None
    if not _copied_whole(alignment, sched, mapping) or not _has_registers(alignment, sched, mapping, device):
        return None
    resident = device.choices.persistent_resident
    clusters = device.clusters_at_once(-(-mapping.row_splits // resident))
    groups = -(-static_extent(alignment.domain.rows) // mapping.rows_per_block)
    for times in range(1, groups // (device.choices.persistent_groups * clusters) + 1):
        workers = times * clusters
        iterations = -(-groups // workers)
        persistent = replace(mapping, workers=workers, tasks=iterations, blocks_per_sm=resident)
        static = partial_bytes(sched, persistent) + device.choices.shared_slack_bytes
        fits = (
            static <= OPT_IN_BYTES
            and blocks_in_shared(device, patch_bytes(sched, persistent) + static) >= resident
        )
        if iterations <= device.choices.persistent_most and fits:
            # This check comes last because it takes proofs, and some candidates fail at everything else.
            return (
                persistent if all(_are_neighbours(alignment, leaf) for leaf in mapping.transposed) else None
            )
    return None


def _has_registers(alignment: Alignment, sched: LoopNest, mapping: RowMapping, device: DeviceModel) -> bool:
    """Return whether threads have registers for their columns if so many blocks are resident, and enough columns."""
    ((columns, spread),) = mapping.columns.items()
    if static_extent(columns) < device.choices.persistent_columns * mapping.row_splits:
        return False
    # NVIDIA's compiler converts kept values of half types early.
    half = any(item_bytes(tensor.dtype) == 2 for tensor, _ in mapping.transposed)
    tile = spread.chunks * spread.vector * max(tile_words(alignment, sched, columns), float(half))
    own = device.registers_per_sm // (mapping.block * device.choices.persistent_resident)
    return tile + device.choices.persistent_registers <= own


def _copied_whole(alignment: Alignment, sched: LoopNest, mapping: RowMapping) -> bool:
    """Return whether all inputs that rows read their own elements of are patches, of whole pieces of rows."""
    domain = alignment.domain
    streamed = {leaf for p in sched.passes for leaf in p.loads if is_streamed(domain.rows, leaf)}
    return streamed == set(mapping.transposed) and all(
        _has_pieces(alignment, mapping, leaf) for leaf in mapping.transposed
    )


def _has_pieces(alignment: Alignment, mapping: RowMapping, leaf: Leaf) -> bool:
    layout = pieces(mapping, leaf)
    if mapping.rows_per_block * item_bytes(leaf[0].dtype) < alignment.choices.persistent_line_bytes:
        return False
    return layout.column > 0 and static_extent(alignment.domain.rows) % layout.rows == 0


def _are_neighbours(alignment: Alignment, leaf: Leaf) -> bool:
    """Return whether the rows of every piece are neighbours in memory."""
    tensor, point = leaf
    together = PIECE_BYTES // item_bytes(tensor.dtype)
    return rows_vectorizable(alignment.domain, point.indices, tensor.shape, point.columns, together)
