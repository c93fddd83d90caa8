# SPDX-License-Identifier: Apache-2.0
"""Remote stitching: independent scopes of equal shape share a launch, dependent ones do not."""

from __future__ import annotations

from collections.abc import Sequence

from tests.scope.nodes import compute, memory
from tvm_stitch.config import StitchConfig
from tvm_stitch.scope.identify import identify
from tvm_stitch.scope.node import Node


def scopes(nodes: Sequence[Node], **options: object) -> set[frozenset[str]]:
    return {frozenset(n.name for n in s.nodes) for s in identify(nodes, StitchConfig(**options)).scopes}


def two(shape: tuple[int, int] = (8, 64)) -> list[Node]:
    return [
        memory("sum", ["x"], "a"), memory("spread", ["x", "a"], "b", escapes=True),
        memory("sum", ["y"], "c", shape), memory("spread", ["y", "c"], "d", shape, escapes=True),
    ]  # fmt: skip


def test_independent_scopes_of_equal_shape_are_joined() -> None:
    assert scopes(two()) == {frozenset("abcd")}
    assert scopes(two(), remote=False) == {frozenset("ab"), frozenset("cd")}


def test_scopes_of_other_rows_are_not() -> None:
    assert scopes(two((16, 64))) == {frozenset("ab"), frozenset("cd")}


def test_scopes_with_a_path_between_them_are_not() -> None:
    nodes = [
        memory("sum", ["x"], "a"), memory("spread", ["x", "a"], "b"), compute(["b"], "m"),
        memory("sum", ["m"], "c"), memory("spread", ["m", "c"], "d", escapes=True),
    ]  # fmt: skip
    assert scopes(nodes) == {frozenset("ab"), frozenset("cd")}


def test_joining_one_pair_may_forbid_another() -> None:
    """a -> m -> b and c -> n -> d: a joins d or b joins c, never both pairs crosswise."""
    nodes = [
        memory("exp", ["x"], "a"), memory("exp", ["y"], "c"), compute(["a"], "m"), compute(["c"], "n"),
        memory("sum", ["m"], "b", escapes=True), memory("sum", ["n"], "d", escapes=True),
    ]  # fmt: skip
    assert scopes(nodes) == {frozenset("ac"), frozenset("bd")}


def test_limits_hold() -> None:
    nodes = [memory("exp", [f"x{i}"], f"v{i}", escapes=True) for i in range(40)]
    found = identify(nodes, StitchConfig(max_arguments=10))
    assert max(len(s.inputs) + len(s.outputs) for s in found.scopes) <= 10
    assert len(found.scopes) == 8
