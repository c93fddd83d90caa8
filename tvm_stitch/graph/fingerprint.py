# SPDX-License-Identifier: Apache-2.0
"""A text that says what a graph computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import compat
from .extent import Extent
from .ir import Operator, StitchGraph, Tensor


def fingerprint(graph: StitchGraph) -> str:
    """A text that only graphs of the same computation share, unlike ``str(graph)``, which names tensors and operators.

    It is the same for what is read again from the same functions. Of expressions it has a hash of 64 bits, which takes
    TVM much less time than to print them.
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
    """An operator but for its expressions. The accesses say which tensors the buffers are that its value reads."""
    reads = ", ".join(str(numbers[a.tensor]) for a in op.accesses)
    return f"{_tensors([op.output])} over {_shape(a.extent for a in op.reduce)} {op.combiner} <- {reads}"


def _nodes(op: Operator) -> list[Any]:
    """An operator's expressions and the variables that they are over, in order."""
    found = [a.var for a in op.axes]
    found += [a.extent for a in op.reduce if not isinstance(a.extent, int)]
    found += [] if op.identity is None else [op.identity]
    return [*found, op.value, *(index for a in op.accesses for index in a.indices)]


def _tensors(tensors: Iterable[Tensor]) -> str:
    return ", ".join(f"{_shape(t.shape)}{t.dtype}" for t in tensors)


def _shape(shape: Iterable[Extent]) -> str:
    """A shape; what its symbolic extents are, the hash says."""
    return f"<{','.join(str(e) if isinstance(e, int) else '?' for e in shape)}>"
