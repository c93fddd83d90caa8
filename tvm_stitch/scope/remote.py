# SPDX-License-Identifier: Apache-2.0
"""Remote stitching (AStitch 4.1): join scopes with no path between them when one domain serves both.

Siblings, which read the same large input, save reading it again; scopes of equal shape save a launch.
"""

from __future__ import annotations

from collections.abc import Callable

from ..graph.extent import Extent
from .node import Value
from .quotient import Quotient

WINDOW = 8
"""How many following scopes a scope is compared with: keeps the work linear in the size of the graph."""


def join_remote(
    quotient: Quotient, is_scope: Callable[[int], bool], try_merge: Callable[[int, int], str]
) -> None:
    """Merge siblings, then independent scopes of equal shape that become ready at about the same time."""
    _join_siblings(quotient, is_scope, try_merge)
    order = [s for s in quotient.topological() if is_scope(s)]
    shape = {s: _signature(quotient, s) for s in order}
    alive = set(order)
    for k, a in enumerate(order):
        if a not in alive or shape[a] is None:
            continue
        for b in order[k + 1 : k + 1 + WINDOW]:
            if b in alive and shape[b] == shape[a] and not quotient.connected(a, b):
                if not try_merge(a, b):
                    alive.discard(max(a, b))
                    if a > b:
                        break


def _join_siblings(
    quotient: Quotient, is_scope: Callable[[int], bool], try_merge: Callable[[int, int], str]
) -> None:
    readers: dict[Value, list[int]] = {}
    for i, node in enumerate(quotient.nodes):
        if node.graph is None or not is_scope(quotient.scope_of[i]):
            continue
        for value, tensor in zip(node.inputs, node.graph.inputs):
            if _is_large(tensor.size, [t.size for t in [*node.graph.inputs, *node.graph.outputs]]):
                readers.setdefault(value, []).append(i)
    for nodes in readers.values():
        for first, second in zip(nodes, nodes[1:]):
            a, b = quotient.scope_of[first], quotient.scope_of[second]
            if a != b and not quotient.connected(a, b):
                try_merge(a, b)


def _is_large(size: Extent, others: list[Extent]) -> bool:
    """Is the tensor of about the size of the largest one its reader touches?"""
    static = [s for s in others if isinstance(s, int)]
    if isinstance(size, int):
        return len(static) == len(others) and 2 * size >= max(static)
    return True


def _signature(quotient: Quotient, scope: int) -> str | None:
    """What two scopes must share to be worth joining: the sizes of their outputs and reductions."""
    sizes = set()
    for i in quotient.members[scope]:
        node = quotient.nodes[i]
        if node.graph is None or node.is_view:
            continue
        sizes |= {str(op.output.size) for op in node.graph.reduces}
        sizes |= {str(t.size) for t in node.graph.outputs}
    return ",".join(sorted(sizes)) or None
