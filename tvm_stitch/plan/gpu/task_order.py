# SPDX-License-Identifier: Apache-2.0
"""Order the tasks of a grid-wide plan's stages, and share out their rows over blocks.

A second sweep over more than the second-level cache holds finds nothing there if it begins where the first one began.
It finds the end of the input if it goes backwards.

Rows of weights that lanes multiply may be shared out one by one. If the last blocks would have no task, or the last
round few, all blocks have rows of it, and read at the same time. On an H200 a step of a decoder of 16 layers took 782
us in the place of 790. Rows that matrix units multiply are shared out by the task. One by one, four tokens took 889 us
in the place of 869.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...cost.choices import Choices
from ...graph.dtype import item_bytes
from ...graph.ir import Tensor
from ..kernel import Stage


def is_large(tensor: Tensor, choices: Choices) -> bool:
    """Return whether an input does not stay in the second-level cache in any order of tasks."""
    return int(tensor.size) * item_bytes(tensor.dtype) >= choices.cached_input_bytes


def in_alternating_order(phases: Sequence[Sequence[Stage]], choices: Choices) -> list[list[Stage]]:
    """Return the stages. Those that read a large input again begin at the end that its last reader reached."""
    direction: dict[Tensor, bool] = {}

    def directed(p: Stage) -> Stage:
        if p.slice.replicated:
            return p
        tensors = {copy: t for t, copy in p.slice.tensors.items()}
        large = [tensors[t] for t in p.graph.inputs if is_large(t, choices)]
        before = [direction[t] for t in large if t in direction]
        backwards = bool(before) and not before[0]
        direction.update(dict.fromkeys(large, backwards))
        return replace(p, backwards=backwards)

    return [[directed(p) for p in stages] for stages in phases]


def spread(stage: Stage, blocks: int) -> Stage:
    """Return the stage with its rows of weights shared out one by one. Others are returned as they are.

    Args:
        stage: the only stage of its phase that blocks share.
        blocks: number of blocks of the grid.
    """
    mapping = stage.row_mapping
    if not mapping.weights or stage.slice.replicated or stage.tiles > 1 or stage.unroll > 1:
        return stage
    if stage.tasks % blocks == 0 or mapping.rows_per_block == 1:
        return stage
    rounds = -(-stage.tasks // blocks)
    return replace(stage, tasks=rounds * blocks, stride=blocks, spread=True)
