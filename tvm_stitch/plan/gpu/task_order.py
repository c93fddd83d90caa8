# SPDX-License-Identifier: Apache-2.0
"""The direction in which the stages of a grid-wide plan take their tasks: from the first one on, or from the last.

A second sweep over more than the second-level cache holds finds nothing there if it begins where the first one began.
It finds the end of the input if it goes backwards.
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
