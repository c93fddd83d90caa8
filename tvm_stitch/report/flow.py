# SPDX-License-Identifier: Apache-2.0
"""What scope identification saw and refused, by the names that values have in the program.

A front end that knows such names records it while it stitches; the report finds there why two kernels are not one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FlowNode:
    """One call of a tensor function: the names of its results, what it is to stitching, and which calls feed it.

    ``producers`` are indices into the nodes of the same :class:`Flow`. ``reason`` says why it is not memory-intensive.
    """

    values: tuple[str, ...]
    function: str
    kind: str
    reason: str
    producers: tuple[int, ...]


@dataclass(frozen=True)
class Refusal:
    """An edge that is not inside a kernel: indices of the nodes at its ends, and why."""

    producer: int
    consumer: int
    reason: str


@dataclass(frozen=True)
class Flow:
    """The calls of one block in topological order, and the edges on which kernels end."""

    nodes: tuple[FlowNode, ...]
    refusals: tuple[Refusal, ...]
    left: dict[str, str]
