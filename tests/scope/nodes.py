# SPDX-License-Identifier: Apache-2.0
"""Nodes without Relax: small graphs of real operators for tests of scope identification."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tvm.relax import op as R

from tests.graph.helpers import single
from tvm_stitch.graph.ir import StitchGraph
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
def _view(shape: tuple[int, ...]) -> StitchGraph:
    return single(lambda emit, x: R.reshape(x, (shape[1], shape[0])), (shape, "float32"))


MAKERS = {
    "add": _binary, "exp": _unary, "sum": _row_sum, "columns": _column_sum, "spread": _spread, "view": _view,
}  # fmt: skip


def memory(
    kind: str, inputs: Sequence[str], output: str, shape: tuple[int, ...] = (8, 64), escapes: bool = False
) -> Node:
    """A memory-intensive node: ``add``, ``exp``, ``sum`` (of rows), ``columns`` (their sum), ``spread``, ``view``."""
    found = MAKERS[kind](shape)
    return Node(
        output, NodeKind.MEMORY, list(inputs), [output], found, escapes={output} if escapes else set()
    )


def compute(inputs: Sequence[str], output: str, escapes: bool = False) -> Node:
    """A compute-intensive node, without a graph."""
    return Node(
        output, NodeKind.COMPUTE, list(inputs), [output], reason="compute-intensive",
        escapes={output} if escapes else set(),
    )  # fmt: skip
