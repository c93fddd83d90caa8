# SPDX-License-Identifier: Apache-2.0
"""Scopes against TVM's own fusion: what loses goes back, what gains stays, and there are never more kernels."""

from __future__ import annotations

import random

import pytest

from tests.choices import CHOICES
from tests.scope.nodes import check_identified, compute, memory, opaque, patterned, scopes
from tvm_stitch.config import StitchConfig
from tvm_stitch.scope.epilogue import EpilogueRules
from tvm_stitch.scope.identified import Identified
from tvm_stitch.scope.identify import identify
from tvm_stitch.scope.node import Node
from tvm_stitch.scope.quotient import Quotient
from tvm_stitch.scope.weigh import MORE_KERNELS, kernels_of


def found(nodes: list[Node], rules: EpilogueRules | None = None) -> Identified:
    return identify(patterned(nodes), StitchConfig(), CHOICES, rules or EpilogueRules())


def launches(nodes: list[Node], result: Identified | None = None) -> int:
    """Kernels with TVM's fusion, of what the scopes leave where there are some."""
    units = [[n.index for n in unit] for unit in result.order] if result else [[i] for i in range(len(nodes))]
    fixed = {at: 1 for at, unit in enumerate(units) if result and _is_unit(unit, nodes, result)}
    if result:
        fixed |= {
            at: 0 for at, unit in enumerate(units) if nodes[unit[0]] in result.views and at not in fixed
        }
    return sum(k.count for k in kernels_of(nodes, Quotient(nodes).users, units, fixed))


def _is_unit(unit: list[int], nodes: list[Node], result: Identified) -> bool:
    return len(unit) > 1 or any(nodes[unit[0]] in scope.nodes for scope in result.scopes)


def test_a_scope_that_parts_what_tvm_fuses_goes_back() -> None:
    """An unreadable reduction computes what is in front of it."""
    nodes = [memory("exp", ["x"], "a"), opaque(["a"], "b", pattern=3, escapes=True)]
    result = found(nodes)
    assert scopes(result) == set() and launches(nodes, result) == 1


def test_what_is_behind_an_unreadable_convolution_goes_back() -> None:
    nodes = [
        opaque(["x"], "a", pattern=4),
        memory("exp", ["a"], "b"),
        memory("exp", ["b"], "c", escapes=True),
    ]
    result = found(nodes)
    assert scopes(result) == set() and launches(nodes, result) == 1
    assert MORE_KERNELS in {b.reason for b in result.boundaries}


def test_a_scope_that_saves_as_many_stays() -> None:
    """Two kernels of TVM's become one, and the reduction loses its producer: two and two."""
    nodes = [
        memory("exp", ["x"], "a"), memory("sum", ["a"], "s"), memory("spread", ["a", "s"], "d"),
        opaque(["d"], "b", pattern=3, escapes=True),
    ]  # fmt: skip
    result = found(nodes)
    assert scopes(result) == {frozenset("asd")}
    assert launches(nodes, result) <= launches(nodes)


def test_only_the_losing_scope_goes_back() -> None:
    nodes = [
        memory("exp", ["x"], "a"), memory("sum", ["a"], "s"), memory("spread", ["a", "s"], "d", escapes=True),
        opaque(["d"], "o"), memory("exp", ["o"], "e"), opaque(["e"], "b", pattern=3, escapes=True),
    ]  # fmt: skip
    result = found(nodes)
    assert scopes(result) == {frozenset("asd")}


def test_scopes_that_lose_only_together_go_back() -> None:
    """TVM computes both operands of a sum in the kernel of a convolution. Neither costs a kernel alone."""
    nodes = [
        opaque(["x"], "c", pattern=4), memory("exp", ["c"], "e"), memory("exp", ["y"], "f"),
        opaque(["e", "f"], "g", pattern=0, escapes=True),
    ]  # fmt: skip
    result = found(nodes)
    assert launches(nodes) == 1 and launches(nodes, result) == 1


def test_a_view_between_operators_given_back_is_fused_again() -> None:
    nodes = [
        opaque(["x"], "a", pattern=2), memory("view", ["a"], "v"), opaque(["v"], "b", pattern=2, escapes=True),
    ]  # fmt: skip
    result = found(nodes)
    assert not result.views and launches(nodes, result) == 1


def test_heavy_operators_leave_a_matmul_where_kernels_are_saved_elsewhere() -> None:
    """On a CPU they are faster apart, but there must not be more kernels in all."""
    rules = EpilogueRules(heavy=False)
    alone = [compute(["x"], "m"), memory("exp", ["m"], "e", escapes=True)]
    assert scopes(found(alone, rules)) == set()
    beside = [
        *alone[:1], memory("exp", ["m"], "e", escapes=True),
        memory("exp", ["y"], "a"), memory("sum", ["a"], "s"), memory("spread", ["a", "s"], "d", escapes=True),
    ]  # fmt: skip
    assert scopes(found(beside, rules)) == {frozenset("e"), frozenset("asd")}
    assert launches(beside) == 4


@pytest.mark.parametrize("chunk", range(2))
def test_never_more_kernels_than_tvm_makes(chunk: int) -> None:
    for seed in range(40 * chunk, 40 * chunk + 40):
        rng = random.Random(seed)
        nodes = patterned(_random_nodes(rng))
        rules = EpilogueRules(heavy=rng.random() < 0.5, greedy=rng.random() < 0.5)
        result = identify(nodes, StitchConfig(), CHOICES, rules)
        check_identified(nodes, result)
        assert launches(nodes, result) <= launches(nodes), seed


def _random_nodes(rng: random.Random) -> list[Node]:
    """Nodes over tensors of one shape, the sums of their rows, and a vector."""
    nodes: list[Node] = []
    full, sums = ["x"], []
    for i in range(rng.randint(2, 24)):
        kept, name = rng.random() < 0.15, f"v{i}"
        kind = rng.choice(["add", "exp", "exp", "bias", "sum", "spread", "compute", "opaque"])
        a, b = rng.choice(full[-5:]), rng.choice(full[-5:])
        if kind == "spread" and not sums:
            kind = "add"
        if kind == "compute":
            nodes.append(compute([a], name, kept))
        elif kind == "opaque":
            nodes.append(opaque(list({a: 0, b: 0}), name, rng.choice([0, 1, 2, 3, 4, 8]), kept))
        else:
            others = {"add": [b], "bias": ["vector"], "spread": sums[-1:]}
            nodes.append(memory(kind, [a, *others.get(kind, [])], name, escapes=kept))
        (sums if kind == "sum" else full).append(name)
    return nodes
