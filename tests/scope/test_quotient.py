# SPDX-License-Identifier: Apache-2.0
"""The graph of scopes against a brute-force search, on random graphs with random merges."""

from __future__ import annotations

import random

import pytest

from tvm_stitch.scope.node import Node, NodeKind
from tvm_stitch.scope.quotient import Quotient


def random_nodes(rng: random.Random, count: int, density: float) -> list[Node]:
    nodes = []
    for i in range(count):
        inputs = [f"v{j}" for j in range(max(0, i - 12), i) if rng.random() < density]
        nodes.append(Node(f"n{i}", NodeKind.MEMORY, inputs, [f"v{i}"]))
    return nodes


def successors(q: Quotient, scope_of: list[int]) -> dict[int, set[int]]:
    edges: dict[int, set[int]] = {s: set() for s in set(scope_of)}
    for i, producers in enumerate(q.producers):
        for p in producers:
            if scope_of[p] != scope_of[i]:
                edges[scope_of[p]].add(scope_of[i])
    return edges


def reachable(edges: dict[int, set[int]], start: int) -> set[int]:
    seen: set[int] = set()
    stack = list(edges[start])
    while stack:
        s = stack.pop()
        if s not in seen:
            seen.add(s)
            stack += edges[s]
    return seen


def nodes_of(bits: int) -> set[int]:
    return {i for i in range(bits.bit_length()) if bits >> i & 1}


def check(q: Quotient) -> None:
    """Members, reachability in both directions, and the order, against a search through the edges."""
    scope_of = list(q.scope_of)
    for s, members in q.members.items():
        assert s == min(members) and members == sorted(members) and all(scope_of[i] == s for i in members)
    assert sorted(i for m in q.members.values() for i in m) == list(range(len(q.nodes)))
    edges = successors(q, scope_of)
    below = {s: reachable(edges, s) for s in q.members}
    for s in q.members:
        assert s not in below[s], "a cycle"
        expected = {i for t in below[s] for i in q.members[t]}
        assert nodes_of(q.below[s]) == expected, (s, "below")
        expected = {i for t in q.members if s in below[t] for i in q.members[t]}
        assert nodes_of(q.above[s]) == expected, (s, "above")
    order = q.topological()
    place = {s: k for k, s in enumerate(order)}
    assert sorted(order) == sorted(q.members)
    assert all(place[a] < place[b] for a, bs in edges.items() for b in bs)


def makes_cycle(q: Quotient, a: int, b: int) -> bool:
    scope_of = [a if s == b else s for s in q.scope_of]
    edges = successors(q, scope_of)
    return a in reachable(edges, a)


@pytest.mark.parametrize("seed", range(40))
def test_random_merges(seed: int) -> None:
    rng = random.Random(seed)
    q = Quotient(random_nodes(rng, rng.randint(2, 40), rng.choice([0.05, 0.15, 0.4])))
    check(q)
    merged = refused = 0
    for _ in range(60):
        if len(q.members) < 2:
            break
        a, b = rng.sample(sorted(q.members), 2)
        assert q.would_cycle(a, b) == makes_cycle(q, a, b)
        edges = successors(q, q.scope_of)
        assert q.connected(a, b) == (b in reachable(edges, a) or a in reachable(edges, b))
        if q.would_cycle(a, b):
            refused += 1
            continue
        name = q.merge(a, b)
        merged += 1
        assert name == min(a, b)
        check(q)
    assert merged


def test_refusals_occur() -> None:
    """In the chain a -> b -> c, joining the ends would make a cycle. Joining neighbours does not."""
    nodes = [Node(n, NodeKind.MEMORY, [i] if i else [], [n]) for n, i in [("a", ""), ("b", "a"), ("c", "b")]]
    q = Quotient(nodes)
    assert q.would_cycle(0, 2) and not q.would_cycle(0, 1) and not q.would_cycle(1, 2)
    q.merge(0, 1)
    assert not q.would_cycle(0, 2)


def test_diamonds() -> None:
    """a feeds b and c, both feed d. Merging b with c is fine. Merging a with d is not, until both are inside."""
    spec = [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"])]
    q = Quotient([Node(n, NodeKind.MEMORY, i, [n]) for n, i in spec])
    assert q.would_cycle(0, 3) and not q.would_cycle(1, 2) and not q.would_cycle(0, 1)
    q.merge(0, 1)
    assert q.would_cycle(0, 3), "c lies between"
    q.merge(0, 2)
    assert not q.would_cycle(0, 3)


def test_a_size_that_is_computed_at_run_time_is_an_edge() -> None:
    count, cast = Node("count", NodeKind.MEMORY, ["x"], ["c"]), Node("cast", NodeKind.OPAQUE, ["c"], ["s"])
    reader = Node("reader", NodeKind.MEMORY, ["x"], ["r"])
    assert not Quotient([count, cast, reader]).would_cycle(0, 2)
    cast.defines, reader.sizes = ["n"], ["n"]
    q = Quotient([count, cast, reader])
    assert q.would_cycle(0, 2) and q.producers == [[], [0], [1]]


def test_the_order_stays_near_the_program() -> None:
    rng = random.Random(0)
    q = Quotient(random_nodes(rng, 30, 0.2))
    assert q.topological() == list(range(30))


@pytest.mark.parametrize("seed", range(5))
def test_a_snapshot_brings_everything_back(seed: int) -> None:
    rng = random.Random(seed)
    q = Quotient(random_nodes(rng, 30, 0.2))

    def merge_some(count: int) -> None:
        for _ in range(count):
            a, b = rng.sample(sorted(q.members), 2)
            if not q.would_cycle(a, b):
                q.merge(a, b)

    merge_some(6)
    before, state = q.snapshot(), q.snapshot()
    merge_some(20)
    assert q.scope_of != before[0]
    q.restore(state)
    assert (q.scope_of, q.members, q.above, q.below) == before
    check(q)
    merge_some(6)
    check(q)
