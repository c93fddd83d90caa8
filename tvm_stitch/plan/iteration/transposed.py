# SPDX-License-Identifier: Apache-2.0
"""Inputs that are read across memory: a row's neighbouring columns are far apart there, neighbouring rows are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ... import compat
from ...compat import Analyzer
from ...cost.choices import Choices
from ...graph.dtype import item_bytes
from ...graph.extent import as_expr, flatten, product, static_extent
from ...graph.ir import StitchGraph, Tensor
from .alignment import Alignment, Misaligned, align
from .domain import At, Domain
from .loops import Leaf, is_streamed


def may_be_transposed(graph: StitchGraph, choices: Choices) -> bool:
    """Return whether there are large static inputs, and something is read in another order than its own.

    The check is cheap.
    """
    shapes = [extent for t in (*graph.inputs, *graph.outputs) for extent in t.shape]
    if not all(isinstance(extent, int) for extent in shapes):
        return False
    if all(static_bytes(tensor) < choices.transposed_bytes for tensor in graph.inputs):
        return False
    return any(
        axis.var in compat.free_vars(access.indices[-1])
        for op in graph.operators
        for access in op.accesses
        if access.indices and static_bytes(access.tensor) >= choices.transposed_bytes
        for axis in op.axes[:-1]
    )


def static_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor of static shape."""
    return static_extent(tensor.size) * item_bytes(tensor.dtype)


def is_transposed(alignment: Alignment, columns: int, leaf: Leaf) -> bool:
    """Return whether rows of an input are neighbours in memory, mostly, and columns are not."""
    tensor, point = leaf
    domain = alignment.domain
    if point.at is not At.INDEX or not is_streamed(domain.rows, leaf):
        return False
    if static_bytes(tensor) < alignment.choices.transposed_bytes or tensor.dtype == "bool":
        return False
    position = positions_of(domain, leaf)
    rows = min(alignment.choices.transposed_sample, static_extent(domain.rows))
    down = [position(row, 0) for row in range(rows)]
    right = [position(0, column) for column in range(min(alignment.choices.transposed_sample, columns))]
    return _neighbours(down) * 8 >= 7 * (len(down) - 1) and _neighbours(right) * 2 < len(right) - 1


def row_alignments(alignment: Alignment) -> Iterator[Alignment]:
    """Yield the alignment, or, if it is flat, those in which rows are over some of the result's first axes.

    Of images whose channels go from last to first, columns are all positions of a channel.
    """
    if not alignment.domain.flat:
        yield alignment
        return
    graph = alignment.graph
    shape = graph.outputs[0].shape
    for axes in range(len(shape) - 1, 0, -1):
        if shape[axes] == 1:
            continue
        try:
            aligned = align(graph, alignment.choices, Domain(product(shape[:axes])))
            yield replace(aligned, dominant=alignment.dominant)
        except Misaligned:
            continue


def positions_of(domain: Domain, leaf: Leaf) -> Callable[[int, int], int | None]:
    """Return a function from a row and a column to the element of a tensor that is read there, None if not known."""
    tensor, point = leaf
    flat, analyzer = as_expr(flatten(list(point.indices), tensor.shape)), Analyzer()

    def position(row: int, column: int) -> int | None:
        values = {domain.row: compat.const(row, "int64"), domain.column: compat.const(column, "int64")}
        return compat.int_value(analyzer.simplify(compat.substitute(flat, values)))

    return position


def _neighbours(positions: Sequence[int | None]) -> int:
    """Return how many of some elements lie right behind the one before."""
    return sum(
        b is not None and a is not None and b - a == 1 for a, b in zip(positions, positions[1:], strict=False)
    )
