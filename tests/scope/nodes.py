# SPDX-License-Identifier: Apache-2.0
"""Nodes without Relax: small graphs of real operators for tests of scope identification, and what must hold of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tvm.relax import op as R

from stitch_testing.validate import validate
from tests.graph.helpers import single
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.scope.identified import Identified
from tvm_stitch.scope.node import Node, NodeKind


@cache
def _binary(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x, y: R.add(x, y), (shape, "float32"), (shape, "float32"))


@cache
def _unary(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x: R.exp(x), (shape, "float32"))


@cache
def _row_sum(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x: R.sum(x, -1, True), (shape, "float32"))


@cache
def _column_sum(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x: R.sum(x, 0, True), (shape, "float32"))


@cache
def _spread(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x, y: R.subtract(x, y), (shape, "float32"), ((*shape[:-1], 1), "float32"))


@cache
def _bias(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x, y: R.add(x, y), (shape, "float32"), (shape[-1:], "float32"))


@cache
def _widen(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x: R.astype(x, "float64"), (shape, "float32"))


@cache
def _narrow(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x: R.astype(x, "float32"), (shape, "float64"))


@cache
def _wide_binary(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x, y: R.add(x, y), (shape, "float64"), (shape, "float64"))


@cache
def _widen_half(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x: R.astype(x, "float32"), (shape, "float16"))


@cache
def _narrow_half(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x: R.astype(x, "float16"), (shape, "float32"))


@cache
def _view(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x: R.reshape(x, (shape[1], shape[0])), (shape, "float32"))


MAKERS = {
    "add": _binary, "exp": _unary, "sum": _row_sum, "columns": _column_sum, "spread": _spread, "view": _view,
    "bias": _bias, "widen": _widen, "narrow": _narrow, "add64": _wide_binary, "widen16": _widen_half,
    "narrow16": _narrow_half,
}  # fmt: skip


def memory(
    kind: str, inputs: Sequence[str], output: str, shape: tuple[int, ...] = (8, 64), escapes: bool = False
) -> Node:
    """Return a memory-intensive node.

    ``kind`` is ``add``, ``bias`` (adds a vector), ``exp``, ``sum`` (of rows), ``columns`` (their sum), ``spread`` or
    ``view``. Others are ``widen`` (to float64), ``narrow`` (back), ``add64`` (of float64), ``widen16`` (from float16)
    and ``narrow16`` (to it).
    """
    found = MAKERS[kind](shape)
    return Node(
        output, NodeKind.MEMORY, list(inputs), [output], found, escapes={output} if escapes else set()
    )


def compute(inputs: Sequence[str], output: str, escapes: bool = False) -> Node:
    """Return a compute-intensive node, without a graph."""
    return Node(
        output, NodeKind.COMPUTE, list(inputs), [output], reason="compute-intensive",
        escapes={output} if escapes else set(),
    )  # fmt: skip


SHAPES = [(8, 64), (64, 8)]

PATTERNS = {"spread": 1, "bias": 1, "view": 2, "sum": 3, "columns": 3}


def opaque(inputs: Sequence[str], output: str, pattern: int = 8, escapes: bool = False) -> Node:
    """Return a call that no scope can take, which TVM's fusion sees with some pattern."""
    return Node(
        output, NodeKind.OPAQUE, list(inputs), [output], reason="unreadable", is_call=True, pattern=pattern,
        escapes={output} if escapes else set(),
    )  # fmt: skip


def patterned(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes of :func:`memory` and :func:`compute`, with the patterns that TVM gives such operators."""
    for node in nodes:
        if node.kind is NodeKind.COMPUTE:
            node.pattern = 4
        elif node.graph is not None:
            kinds = [kind for kind, maker in MAKERS.items() for s in SHAPES if maker(s) is node.graph]
            node.pattern = PATTERNS.get(kinds[0], 0)
    return list(nodes)


def scopes(result: Identified) -> set[frozenset[str]]:
    """Return the scopes, by the names of their nodes."""
    return {frozenset(n.name for n in s.nodes) for s in result.scopes}


def check_identified(nodes: Sequence[Node], result: Identified) -> None:
    """Check that every node is there once, units have an executable order, interfaces are complete and graphs valid."""
    units = [n for unit in result.order for n in unit]
    assert sorted(n.index for n in units) == list(range(len(nodes)))
    made = {v for n in nodes for v in n.outputs}
    seen: set[object] = set()
    for unit in result.order:
        inside = {v for n in unit for v in n.outputs}
        for n in unit:
            assert all(v in seen or v in inside for v in n.inputs if v in made)
        seen |= inside
    for s in result.scopes:
        members = set(s.nodes)
        needed = {v for n in nodes if n not in members for v in n.inputs} | {
            v for n in nodes for v in n.escapes
        }
        inside = {v for n in s.nodes for v in n.outputs}
        unused = {v for n in s.nodes for v in n.outputs if not any(v in m.inputs for m in nodes)}
        assert set(s.outputs) == inside & (needed | unused)
        assert set(s.inputs) == {v for n in s.nodes for v in n.inputs} - inside
        assert len(s.inputs) == len(s.graph.inputs) and len(s.outputs) == len(s.graph.outputs)
        validate(s.graph)
