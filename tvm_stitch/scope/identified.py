# SPDX-License-Identifier: Apache-2.0
"""The result of scope identification: scopes, epilogues, every unit in an executable order, and boundaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from ..config import StitchConfig
from ..graph.ir import StitchGraph
from ..support.errors import StitchError
from .node import Node, Value


@dataclass
class Scope:
    """A stitch op under construction: its nodes, the values that enter and leave it, and its graph."""

    nodes: list[Node]
    inputs: list[Value]
    outputs: list[Value]
    graph: StitchGraph


@dataclass
class Boundary:
    """An edge outside of all kernels, with the reason. ``edge`` holds the indices of the nodes at its ends."""

    producer: str
    consumer: str
    reason: str
    edge: tuple[int, int] = (-1, -1)


@dataclass
class Identified:
    """The result: scopes, matmul epilogues left to TVM, every unit in an executable order, and the boundaries.

    ``left`` names the calls that no scope could take, with the reason. Compute-intensive calls are not among them.
    ``users`` holds the indices of the nodes that read a value. ``views`` are the reshapes that must become views,
    whatever TVM would fuse them with.
    """

    scopes: list[Scope]
    epilogues: list[list[Node]]
    order: list[list[Node]]
    boundaries: list[Boundary] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    users: Mapping[Value, Sequence[int]] = field(default_factory=dict)
    views: Set[Node] = frozenset()

    def checked_left(self, config: StitchConfig) -> dict[str, str]:
        """Return the calls left to TVM and the reasons, by name.

        Raises:
            StitchError: in strict mode, if there are any.
        """
        if config.strict and self.left:
            name, reason = next(iter(self.left.items()))
            raise StitchError(f"{name} cannot be stitched: {reason}")
        return self.left

    def interface(self, nodes: Sequence[Node]) -> tuple[list[Value], list[Value]]:
        """Return the values that nodes read from outside, and their results that are used outside."""
        inside = {n.index for n in nodes}
        leaving = [
            v
            for n in nodes
            for v in n.outputs
            if v in n.escapes or any(i not in inside for i in self.users.get(v, ()))
        ]
        return inputs_of(nodes), leaving


def inputs_of(nodes: Sequence[Node]) -> list[Value]:
    computed = {v for n in nodes for v in n.outputs}
    return list(dict.fromkeys(v for n in nodes for v in n.inputs if v not in computed))
