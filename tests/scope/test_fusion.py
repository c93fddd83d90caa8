# SPDX-License-Identifier: Apache-2.0
"""TVM's fusion on small graphs. That it is TVM's is tested with real modules: tests/relax/stitch/test_dataflow.py."""

from __future__ import annotations

import pytest

from tvm_stitch.scope.fusion import FusionGraph, Pattern, fuse

E, B, I, R, M, O = (
    Pattern.ELEMENTWISE, Pattern.BROADCAST, Pattern.INJECTIVE, Pattern.REDUCE, Pattern.OUT_FUSABLE, Pattern.OPAQUE,
)  # fmt: skip


def groups(*vertices: tuple[int, list[int]], kept: int | None = None) -> list[set[int]]:
    """Return the groups of vertices. Each vertex is a pattern and its operands, in its own pattern."""
    graph = FusionGraph()
    for v, (pattern, reads) in enumerate(vertices):
        graph.add(pattern, [(r, pattern) for r in reads], v == kept)
    named: dict[int, set[int]] = {}
    for v, root in enumerate(fuse(graph)):
        named.setdefault(root, set()).add(v)
    return sorted(named.values(), key=min)


@pytest.mark.parametrize(
    ("vertices", "expected"),
    [
        ([(E, []), (B, [0]), (R, [1])], [{0, 1, 2}]),
        ([(R, []), (E, [0])], [{0}, {1}]),
        ([(M, []), (E, [0]), (E, [1])], [{0, 1, 2}]),
        ([(M, []), (B, [0])], [{0}, {1}]),
        ([(I, []), (M, [0])], [{0}, {1}]),
        ([(E, []), (O, [0]), (E, [1])], [{0}, {1}, {2}]),
        ([(I, []), (E, [0]), (I, [1])], [{0, 1, 2}]),
        ([(M, []), (E, []), (E, [0, 1])], [{0, 1, 2}]),
        ([(M, []), (M, []), (E, [0, 1])], [{0, 2}, {1}]),
        ([(E, []), (E, [0]), (R, [0]), (E, [1, 2])], [{0}, {1, 3}, {2}]),
    ],
)
def test_groups(vertices: list[tuple[int, list[int]]], expected: list[set[int]]) -> None:
    assert groups(*vertices) == expected


def test_what_is_needed_elsewhere_ends_a_group() -> None:
    assert groups((E, []), (E, [0]), (E, [1]), kept=1) == [{0, 1}, {2}]
