# SPDX-License-Identifier: Apache-2.0
"""Choose the inputs that a thread loads before it needs them: those that passes behind a reduction read first.

A load behind a barrier begins after the barrier. If all blocks of a kernel run at once, nothing else hides the time
that it takes. On an H200 a layer norm of 197 rows of 768 columns took 2.7 us with scales and offsets loaded where
they are used. It took 2.1 us with both loaded first. With many rows both take as long.

On a grid of several phases every block computes small stages, such as the norm in front of a product. All blocks wait
for them. So what no earlier phase computes is loaded before the grid barrier in front.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from ...device import DeviceModel
from ...graph.extent import Extent, same
from ...graph.ir import Tensor
from ..iteration.loops import Leaf, LoopNest
from ..kernel import Stage
from .mapping import RowMapping, Storage
from .tile import register_limit, tile_words, words_of


def with_early_loads(stage: Stage, device: DeviceModel) -> Stage:
    """Return the stage with its early loads, as many as registers allow, if all of its blocks run at once."""
    mapping, rows = stage.row_mapping, stage.alignment.domain.rows
    if not isinstance(rows, int) or mapping.storage is not Storage.REGISTERS or mapping.tasks > 1:
        return stage
    blocks = -(-rows // mapping.rows_per_block) * mapping.row_splits
    if mapping.split or blocks * mapping.block > device.sms * device.threads_per_sm:
        return stage
    late = list(_late(stage.schedule, mapping))
    if not late:
        return stage
    limit = float(register_limit(mapping.threads, device))
    if mapping.blocks_per_sm:
        own = device.registers_per_sm // (mapping.block * mapping.blocks_per_sm)
        limit = min(limit, own - device.choices.overhead_registers)
    return _with_early(stage, late, limit)


def with_early_loads_on_grid(stage: Stage, inputs: Collection[Tensor], words: float) -> Stage:
    """Return a stage of a grid with its early loads: before the barrier in front, or before the sums of a product.

    A stage that every block computes loads the kernel's own inputs before the barrier. In rows of weights, what is
    read behind the sums, such as a residual, is loaded before them. Other stages have no early loads.

    Args:
        stage: a stage.
        inputs: the kernel's own inputs.
        words: the registers of a thread for tiles.
    """
    mapping = stage.row_mapping
    if mapping.matrix is not None:
        return stage  # its emitter does so always
    if mapping.weights:
        return replace(stage, early=tuple(_late(stage.schedule, mapping)))
    if not stage.slice.replicated or stage.tasks > 1 or mapping.split:
        return stage
    if mapping.storage is not Storage.REGISTERS or mapping.transposed:
        return stage
    own = {copy for tensor, copy in stage.slice.tensors.items() if tensor in inputs}
    once = [p for p in stage.schedule.passes if mapping.of(p.columns).steps == 1]
    leaves = dict.fromkeys(
        leaf for p in once for leaf in p.loads if leaf[0] in own and leaf[0].dtype != "bool"
    )
    return _with_early(stage, list(leaves), words)


def _with_early(stage: Stage, leaves: list[Leaf], limit: float) -> Stage:
    """Return the stage with as many of the leaves loaded early as registers allow."""
    held = [(e, tile_words(stage.alignment, stage.schedule, e)) for e in stage.schedule.spaces]
    early: list[Leaf] = []
    for leaf in leaves:
        if _words(held, stage.row_mapping, [*early, leaf]) <= limit:
            early.append(leaf)
    return replace(stage, early=tuple(early))


def _late(sched: LoopNest, mapping: RowMapping) -> Iterator[Leaf]:
    """Yield the inputs that only passes behind a reduction read, and that a thread reads whole in one step."""
    reduced, seen = False, set(mapping.transposed)
    for p in sched.passes:
        for leaf in p.loads:
            if reduced and leaf not in seen and leaf[0].dtype != "bool" and mapping.of(p.columns).steps == 1:
                yield leaf
            seen.add(leaf)
        reduced = reduced or bool(p.reduces)


def _words(held: list[tuple[Extent, float]], mapping: RowMapping, early: list[Leaf]) -> float:
    """Return the registers of a thread's tiles: the ``held`` ones of each column of a space, and its early loads."""
    total = 0.0
    for columns, words in held:
        own = sum(words_of(t.dtype) for t, at in early if same(at.columns, columns))
        m = mapping.of(columns)
        total = max(total, (words + own) * m.vector * m.chunks)
    return total
