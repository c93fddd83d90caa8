# SPDX-License-Identifier: Apache-2.0
"""Edges seen and refused by scope identification, by the names that values have in the program.

A front end that knows such names records them while it stitches. The report reads there why two kernels are not
one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FlowNode:
    """One call of a tensor function: the names of its results, its kind for stitching, and the calls that feed it.

    ``producers`` are indices into the nodes of the same :class:`Flow`. ``reason`` says why it is not
    memory-intensive.
    """

    values: tuple[str, ...]
    function: str
    kind: str
    reason: str
    producers: tuple[int, ...]


@dataclass(frozen=True)
class RefusedEdge:
    """An edge outside of all kernels: the indices of the nodes at its ends, and the reason."""

    producer: int
    consumer: int
    reason: str


@dataclass(frozen=True)
class Flow:
    """The calls of one block in topological order, and the edges on which kernels end."""

    nodes: tuple[FlowNode, ...]
    refusals: tuple[RefusedEdge, ...]
    left: dict[str, str]
