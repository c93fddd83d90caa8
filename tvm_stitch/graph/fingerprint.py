# SPDX-License-Identifier: Apache-2.0
"""A text that says what a graph computes."""

from __future__ import annotations

from collections.abc import Iterable

from .extent import Extent
from .ir import Operator, StitchGraph, Tensor


def fingerprint(graph: StitchGraph) -> str:
    """A text that only graphs of the same computation share, unlike ``str(graph)``, which names tensors and operators.

    It is the same for what is read again from the same functions.
    """
    numbers = {tensor: number for number, tensor in enumerate(graph.tensors())}
    lines = [_tensors(graph.inputs)]
    lines += [_line(op, numbers) for op in graph.operators]
    lines.append(", ".join(str(numbers[tensor]) for tensor in graph.outputs))
    return "\n".join(lines)


def _line(op: Operator, numbers: dict[Tensor, int]) -> str:
    """An operator. Its value names the buffers that it loads from; the accesses say which tensors these are."""
    reads = ", ".join(f"{numbers[a.tensor]}{[str(i) for i in a.indices]}" for a in op.accesses)
    axes = f"{[a.var.name for a in op.spatial]} over {[(a.var.name, str(a.extent)) for a in op.reduce]}"
    combined = f"{op.combiner} from {op.identity} of " if op.is_reduce else ""
    return f"{_tensors([op.output])} {axes} = {combined}{op.value} <- {reads}"


def _tensors(tensors: Iterable[Tensor]) -> str:
    return ", ".join(f"{_shape(t.shape)}{t.dtype}" for t in tensors)


def _shape(shape: Iterable[Extent]) -> str:
    return f"<{','.join(map(str, shape))}>"
