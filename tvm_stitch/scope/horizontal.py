# SPDX-License-Identifier: Apache-2.0
"""Horizontal fusion (remote stitching in AStitch 4.1): join scopes without a path between them into one launch.

Siblings, which read the same large input, save reading it again. Others save a launch. Scopes of equal shape share
a row domain, and scopes of different shapes lie side by side in a grid. No join may delay an operator. A scope's
*level* is the number of consecutive kernels after which it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from ..graph.extent import Extent, extent_key
from .merging import Merger
from .node import Value
from .quotient import Quotient


def fuse_horizontally(merger: Merger, is_scope: Callable[[int], bool]) -> None:
    """Merge siblings, then independent scopes of equal shape, then any that gain by sharing a launch.

    Args:
        merger: the scopes, which are merged in place.
        is_scope: returns whether a unit is a stitch scope.
    """
    fusion = _HorizontalFusion(merger, is_scope)
    fusion.join_siblings()
    fusion.join_bins(fusion.signature)
    fusion.join_bins(fusion.whatever)


@dataclass
class _Bin:
    """Scopes to merge, the unions of their bit sets, and the operators that wait for them."""

    scopes: list[int] = field(default_factory=list)
    inside: int = 0
    above: int = 0
    below: int = 0
    level: int = 0
    moving: float = 0.0
    idle: float = 0.0
    consumers: list[int] = field(default_factory=list)


class _HorizontalFusion:
    def __init__(self, merger: Merger, is_scope: Callable[[int], bool]):
        self.merger, self.is_scope = merger, is_scope
        self.quotient: Quotient = merger.quotient
        self.ready: dict[int, int] = {}
        self.level: dict[int, int] = {}
        for s in self.quotient.topological():
            self._set_level(s)

    def _set_level(self, scope: int) -> None:
        q = self.quotient
        before = {q.scope_of[p] for i in q.members[scope] for p in q.producers[i]} - {scope}
        self.ready[scope] = max((self.level[s] for s in before), default=0)
        moves = not all(q.nodes[i].is_view for i in q.members[scope])
        self.level[scope] = self.ready[scope] + moves

    # -- siblings -----------------------------------------------------------------------------------------------
    def join_siblings(self) -> None:
        """Merge scopes that read the same large input."""
        q = self.quotient
        readers: dict[Value, list[int]] = {}
        for i, node in enumerate(q.nodes):
            if node.graph is None or not self.is_scope(q.scope_of[i]):
                continue
            for value, tensor in zip(node.inputs, node.graph.inputs):
                if _is_large(tensor.size, [t.size for t in [*node.graph.inputs, *node.graph.outputs]]):
                    readers.setdefault(value, []).append(i)
        for nodes in readers.values():
            for first, second in zip(nodes, nodes[1:]):
                a, b = q.scope_of[first], q.scope_of[second]
                if a == b or q.connected(a, b) or self._delay(self._bin(a), self._bin(b), weigh=False):
                    continue
                level, ready = max(self.level[a], self.level[b]), max(self.ready[a], self.ready[b])
                if self.merger.try_merge(a, b) is None:
                    self.level[min(a, b)], self.ready[min(a, b)] = level, ready

    # -- bins ---------------------------------------------------------------------------------------------------
    def signature(self, scope: int) -> Hashable | None:
        """Return the sizes of a scope's outputs and reductions, which are equal for scopes of one kind. None for
        views.
        """
        sizes: set[Hashable] = set()
        for i in self.quotient.members[scope]:
            node = self.quotient.nodes[i]
            if node.graph is None or node.is_view:
                continue
            sizes |= {extent_key(op.output.size) for op in node.graph.reduces}
            sizes |= {extent_key(t.size) for t in node.graph.outputs}
        return frozenset(sizes) or None

    def whatever(self, scope: int) -> Hashable | None:
        """Return one key for all scopes that may share a launch with others, or None if sharing costs more than it
        saves.
        """
        moving = self.merger.worth[scope].moving
        if (
            not moving
            or moving * (1 / self.merger.choices.side_by_side_share - 1) > self.merger.choices.launch_seconds
        ):
            return None
        return ""

    def join_bins(self, kind: Callable[[int], Hashable | None]) -> None:
        """Merge independent scopes of one kind that become ready at about the same time."""
        alike = kind == self.signature
        order = [s for s in self.quotient.topological() if self.is_scope(s) and kind(s) is not None]
        bins: dict[Hashable, list[_Bin]] = {}
        closed: list[_Bin] = []
        for s in sorted(order, key=lambda s: self.level[s]):
            opened = bins.setdefault(kind(s), [])
            new = self._bin(s)
            for candidate in reversed(opened):
                if self._fits(candidate, new, weigh=not alike):
                    self._put(candidate, new)
                    break
            else:
                opened.append(new)
                if len(opened) > self.merger.choices.open_bins:
                    closed.append(opened.pop(0))
        for candidate in [*closed, *(b for opened in bins.values() for b in opened)]:
            self._merge(candidate.scopes)

    def _merge(self, scopes: Sequence[int]) -> None:
        """Merge all scopes, or else each half."""
        if len(scopes) < 2:
            return
        level, ready = max(self.level[s] for s in scopes), max(self.ready[s] for s in scopes)
        if self.merger.merge_all(scopes):
            self.level[min(scopes)], self.ready[min(scopes)] = level, ready
            return
        half = len(scopes) // 2
        self._merge(scopes[:half])
        self._merge(scopes[half:])

    def _bin(self, scope: int) -> _Bin:
        q, worth = self.quotient, self.merger.worth[scope]
        inside = q.mask(scope)
        consumers = [c for i in q.members[scope] for c in q.consumers[i] if q.scope_of[c] != scope]
        return _Bin(
            [scope], inside, q.above[scope], q.below[scope], self.level[scope], worth.moving or 0.0, worth.idle,
            consumers,
        )  # fmt: skip

    @staticmethod
    def _put(a: _Bin, b: _Bin) -> None:
        a.scopes += b.scopes
        a.inside |= b.inside
        a.above |= b.above
        a.below |= b.below
        a.level = max(a.level, b.level)
        a.moving += b.moving
        a.idle = max(0.0, max(a.idle, b.idle) - min(a.moving, b.moving))
        a.consumers += b.consumers

    def _fits(self, a: _Bin, b: _Bin, weigh: bool) -> bool:
        both = a.inside | b.inside
        if a.below & b.inside or b.below & a.inside:
            return False
        if (a.below | b.below) & (a.above | b.above) & ~both:
            return False
        if self._delay(a, b, weigh):
            return False
        members = sorted(i for s in (*a.scopes, *b.scopes) for i in self.quotient.members[s])
        return not self.merger.limits(members)

    # -- the critical path --------------------------------------------------------------------------------------
    def _delay(self, a: _Bin, b: _Bin, weigh: bool) -> bool:
        """Return whether an operator that needs one of two bins would wait for the other.

        There is no delay if the operator needs both, or is not ready before the other one is done. With ``weigh``,
        the other's data must also not take longer to move than a launch takes, unless it runs during the first
        one's last wave.
        """
        return any(self._waits(x, y, weigh) for x, y in ((a, b), (b, a)))

    def _waits(self, a: _Bin, b: _Bin, weigh: bool) -> bool:
        small = not weigh or b.moving <= max(self.merger.choices.launch_seconds, a.idle)
        for c in a.consumers:
            if b.below >> c & 1:
                continue
            if not small or b.level > self.ready[self.quotient.scope_of[c]]:
                return True
        return False


def _is_large(size: Extent, others: list[Extent]) -> bool:
    """Return whether a tensor is about as large as the largest one that its reader touches."""
    static = [s for s in others if isinstance(s, int)]
    if isinstance(size, int):
        return len(static) == len(others) and 2 * size >= max(static)
    return True
