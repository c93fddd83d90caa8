# SPDX-License-Identifier: Apache-2.0
"""Count the bytes of uncoalesced accesses: neighbouring threads read or write elements that are far apart.

Memory moves in sectors of 32 bytes. A transposition without patches in shared memory
(:mod:`..strategies.transposed_loads`) moves one sector for every element.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.dtype import item_bytes
from ...graph.extent import static_extent
from ..iteration.alignment import Alignment
from ..iteration.domain import At
from ..iteration.loops import Leaf, is_streamed
from ..iteration.transposed import may_be_transposed, positions_of, static_bytes
from .orientation import is_strided

_SECTOR_BYTES = 32


def uncoalesced_bytes(alignment: Alignment) -> int:
    """Return the bytes that a graph moves in addition to its inputs and results, unless a patch transposes them.

    The result is 0 if no large tensor is read or written across memory, or a shape is symbolic.
    """
    if not may_be_transposed(alignment.graph, alignment.choices):
        return 0
    if is_strided(alignment):  # neighbouring threads have neighbouring rows then
        return 0
    return excess_bytes(alignment)


def excess_bytes(alignment: Alignment) -> int:
    """Return the bytes moved in addition to those of a graph, if neighbouring threads have neighbouring columns."""
    if not may_be_transposed(alignment.graph, alignment.choices):
        return 0
    return sum(_excess(alignment, leaf) for leaf in dict.fromkeys(_accesses(alignment)))


def _accesses(alignment: Alignment) -> Iterator[Leaf]:
    """Yield the tensors that about every point of the domain reads or writes at its own indices, with the points."""
    graph, rows = alignment.graph, alignment.domain.rows
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    for (op, at), reads in alignment.reads.items():
        positions = [
            (access.tensor, point) for access, point in zip(op.accesses, reads) if access.tensor in inputs
        ]
        if op.output in outputs and not op.is_reduce:
            positions.append((op.output, at))
        for tensor, point in positions:
            if point is None or point.at is not At.INDEX or not point.per_column:
                continue
            if static_bytes(tensor) >= alignment.choices.transposed_bytes and is_streamed(
                rows, (tensor, point)
            ):
                yield tensor, point


def _excess(alignment: Alignment, leaf: Leaf) -> int:
    """Return the bytes moved in addition to those of a tensor, by the sectors that a warp's first elements lie in."""
    tensor, point = leaf
    position, item = positions_of(alignment.domain, leaf), item_bytes(tensor.dtype)
    elements, columns = alignment.choices.transposed_sample - 1, static_extent(point.columns)
    sectors = set()
    for element in range(elements):
        at = position(*divmod(element, columns))
        if at is None:
            return 0
        sectors.add(at * item // _SECTOR_BYTES)
    times = len(sectors) * _SECTOR_BYTES / (elements * item)
    return int(static_bytes(tensor) * (times - 1)) if times > alignment.choices.uncoalesced_times else 0
