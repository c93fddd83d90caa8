# SPDX-License-Identifier: Apache-2.0
"""Rows of weights on a GPU: the sums of a product of few rows, which waits for its weights and computes little.

A warp, or a few, read a row of the domain: the weights of one column of the product or of some neighbouring ones. All
sums that need a weight are taken from one load of it. Packed integers are loaded by the word and scales by the group,
however many columns read them. A thread has few accumulators, since the sums are many.
"""

from __future__ import annotations

from ... import compat
from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import ByExtent
from ..gpu.mapping import ColumnMapping, RowMapping
from ..iteration.alignment import Alignment
from ..iteration.contiguity import repeated
from ..iteration.loops import Leaf, LoopNest, RowLoop

VECTOR_BYTES = 16
"""Bytes of a vector load."""


def weights_mapping(
    alignment: Alignment, sched: LoopNest, device: DeviceModel, block: int, blocks: int
) -> RowMapping | None:
    """Return a mapping of rows of weights to warps, or None for other rows.

    Args:
        alignment: of the operators.
        sched: their passes.
        device: the device that the kernel is for.
        block: threads of a block.
        blocks: number of blocks that are resident at once.
    """
    sums = sums_of_products(alignment, sched)
    if sums is None:
        return None
    columns = int(sums.columns)
    loads = [leaf for leaf in sums.loads if is_weight(alignment, leaf)]
    weights = {leaf: repeats_of(alignment, leaf, columns, device.choices.weight_columns) for leaf in loads}
    return _mapping(alignment, sched, sums, weights, device, block, blocks) if weights else None


def sums_of_products(alignment: Alignment, sched: LoopNest) -> RowLoop | None:
    """Return the pass that takes the sums of a product, or None if the rows have other reductions."""
    reducing = [p for p in sched.passes if p.reduces]
    if len(reducing) != 1 or not all(op.contraction for op in reducing[0].reduces):
        return None
    few = alignment.choices.product_results
    others = [p for p in sched.passes if p is not reducing[0]]
    if reducing[0].outputs or any(int(p.columns) > few or p.level < reducing[0].level for p in others):
        return None
    return reducing[0]


def is_weight(alignment: Alignment, leaf: Leaf) -> bool:
    """Return whether rows read elements of their own of an input."""
    domain, (tensor, point) = alignment.domain, leaf
    indices = domain.input_indices(tensor.shape, point)
    return any(domain.row in compat.free_vars(i) for i in indices)


def repeats_of(alignment: Alignment, leaf: Leaf, columns: int, most: int) -> int:
    """Return the neighbouring columns, at most so many, that read the same element of an input."""
    domain, (tensor, point) = alignment.domain, leaf
    return repeated(domain, domain.input_indices(tensor.shape, point), tensor.shape, columns, most)


def _mapping(
    alignment: Alignment, sched: LoopNest, sums: RowLoop, weights: dict[Leaf, int], device: DeviceModel, block: int,
    blocks: int,
) -> RowMapping:  # fmt: skip
    """Return threads for the rows: as many warps a row as keep the device busy, and loads of 16 bytes."""
    choices, rows, columns = device.choices, int(alignment.domain.rows), int(sums.columns)
    widest = min(VECTOR_BYTES * every // item_bytes(leaf[0].dtype) for leaf, every in weights.items())
    vector = 1
    while vector * 2 <= min(widest, choices.weight_columns) and columns % (vector * 2) == 0:
        vector *= 2
    weights = {leaf: min(every, vector) for leaf, every in weights.items()}
    vectors = columns // vector
    most = min(block, max(device.warp, vectors))
    counts = [device.warp << n for n in range(device.max_threads_per_block.bit_length())]
    counts = [count for count in counts if count <= most and block % count == 0]
    size = sum(int(tensor.size) * item_bytes(tensor.dtype) for tensor in {leaf[0] for leaf in weights})
    threads = min(
        counts, key=lambda count: (_seconds(rows, size, block // count, count, blocks, device), count)
    )
    words = sum(max(1, vector // every * item_bytes(leaf[0].dtype) // 4) for leaf, every in weights.items())
    chunks = -(-vectors // threads)
    at_once = max(1, min(chunks, choices.weight_words // words))
    # Without a rest, no load has a condition.
    at_once = next((n for n in range(at_once, at_once // 2, -1) if chunks % n == 0), at_once)
    steps = -(-chunks // at_once)
    at_once = -(-chunks // steps)
    spaces = [(columns, ColumnMapping(vector, at_once, steps))]
    for p in sched.passes:
        if p is not sums:
            spaces.append((p.columns, ColumnMapping(1, -(-int(p.columns) // threads))))
    per_reduction = max(1, choices.weight_sums // len(sums.reduces))
    return RowMapping(
        threads,
        block // threads,
        ByExtent(spaces),
        weights=weights,
        sums=1 << (per_reduction.bit_length() - 1),
    )


def _seconds(rows: int, size: int, at_once: int, threads: int, blocks: int, device: DeviceModel) -> float:
    """Return the time of rows that read ``size`` bytes.

    Blocks without rows read nothing. Each round of rows waits for its loads and its sums. Warps that share a row wait
    for each other.
    """
    rounds = -(-rows // (at_once * blocks))
    idle = rounds * at_once * blocks / rows
    waiting = device.choices.weight_warps_cost * ((threads // device.warp).bit_length() - 1)
    return (idle + waiting) * size / device.bandwidth + rounds * device.choices.weight_round_seconds
