# SPDX-License-Identifier: Apache-2.0
"""A text that identifies a graph's computation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import compat
from .extent import Extent
from .ir import Operator, StitchGraph, Tensor


def fingerprint(graph: StitchGraph) -> str:
    """Return a text that two graphs share only if they compute the same.

    Unlike ``str(graph)``, it names no tensors and operators. Reading the same functions again gives the same text.
    Expressions enter as one hash of 64 bits, which takes TVM much less time than printing them.
    """
    numbers = {tensor: number for number, tensor in enumerate(graph.tensors())}
    lines = [_tensors(graph.inputs)]
    lines += [_line(op, numbers) for op in graph.operators]
    lines.append(", ".join(str(numbers[tensor]) for tensor in graph.outputs))
    nodes = [e for t in graph.tensors() for e in t.shape if not isinstance(e, int)]
    nodes += [node for op in graph.operators for node in _nodes(op)]
    lines.append(f"{compat.hash_in_order(nodes):x}")
    return "\n".join(lines)


def _line(op: Operator, numbers: dict[Tensor, int]) -> str:
    """Return an operator's text without its expressions. The accesses identify the tensors behind the buffers it
    reads.
    """
    reads = ", ".join(str(numbers[a.tensor]) for a in op.accesses)
    return f"{_tensors([op.output])} over {_shape(a.extent for a in op.reduce)} {op.combiner} <- {reads}"


def _nodes(op: Operator) -> list[Any]:
    """Return an operator's expressions and their variables, in order."""
    nodes = [a.var for a in op.axes]
    nodes += [a.extent for a in op.reduce if not isinstance(a.extent, int)]
    nodes += [] if op.identity is None else [op.identity]
    return [*nodes, op.value, *(index for a in op.accesses for index in a.indices)]


def _tensors(tensors: Iterable[Tensor]) -> str:
    return ", ".join(f"{_shape(t.shape)}{t.dtype}" for t in tensors)


def _shape(shape: Iterable[Extent]) -> str:
    """Return a shape as text. Symbolic extents are left to the hash."""
    return f"<{','.join(str(e) if isinstance(e, int) else '?' for e in shape)}>"
