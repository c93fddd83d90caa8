# SPDX-License-Identifier: Apache-2.0
"""Pieces of a value: inputs of which conditions on the position choose one, as in a concatenation or a pad.

An expression evaluates such a choice element by element. Often the choice is the same for all columns of a vector,
which are neighbours in the chosen input. Then a thread chooses once and loads the vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ... import compat
from ...compat import Expr
from ...graph.access import branches
from ...graph.dtype import item_bytes
from ...graph.extent import Extent
from ...graph.ir import Access, Tensor
from .alignment import Alignment, Key
from .contiguity import vectorizable
from .domain import Domain, Point
from .uniform import is_uniform


@dataclass(frozen=True, eq=False)
class Piece:
    """An input that is read where a condition holds, and no condition of an earlier piece.

    Attributes:
        condition: in the domain's row and column variables. None for the last piece, which is read elsewhere.
        tensor: the input, or None for a constant.
        point: where the input is read.
        constant: the number in place of an input, such as the border of a pad.
    """

    condition: Expr | None
    tensor: Tensor | None = None
    point: Point | None = None
    constant: Expr | None = None


@dataclass(frozen=True, eq=False)
class Choice:
    """The pieces of a value, and the number of neighbouring columns that lie in one of them."""

    pieces: tuple[Piece, ...]
    columns: int


def choice_of(alignment: Alignment, key: Key, columns: Extent, vector: int) -> Choice | None:
    """Return the pieces of a value that vectors of ``vector`` columns may load, or parts of two columns or more.

    Return None for other values: those that compute with what they choose, or that choose column by column.
    """
    pieces = _pieces(alignment, key)
    if pieces is None:
        return None
    most = min([vector, *(16 // item_bytes(p.tensor.dtype) for p in pieces if p.tensor is not None)])
    while most > 1:
        if _is_uniform(alignment.domain, pieces, columns, most):
            return Choice(pieces, most)
        most //= 2
    return None


def _pieces(alignment: Alignment, key: Key) -> tuple[Piece, ...] | None:
    op, point = key
    if op.is_reduce or branches(op.value) is None or op.output.dtype == "bool":
        return None
    axis = alignment.domain.axis_values(op, point)
    accesses = iter(alignment.children(key))
    pieces: list[Piece] = []
    value, condition = op.value, None
    while (chosen := branches(value)) is not None:
        if branches(chosen[1]) is not None or any(compat.is_load(e) for e in compat.parts(chosen[0])):
            return None
        condition = compat.substitute(chosen[0], axis)
        piece = _piece(chosen[1], condition, accesses, alignment, op.output)
        if piece is None:
            return None
        pieces.append(piece)
        value = chosen[2]
    last = _piece(value, None, accesses, alignment, op.output)
    if last is None or all(p.tensor is None for p in (*pieces, last)):
        return None
    return (*pieces, last)


def _piece(
    value: Expr, condition: Expr | None, accesses: Iterator[tuple[Access, Point | None]], alignment: Alignment,
    result: Tensor,
) -> Piece | None:  # fmt: skip
    """Return a branch as a piece, or None if it is neither an element of an input nor a number."""
    if compat.kind(value) in ("IntImm", "FloatImm"):
        return Piece(condition, constant=value)
    if not compat.is_load(value):
        return None
    access, point = next(accesses)
    if point is None or not point.per_column or access.tensor not in alignment.graph.inputs:
        return None
    return Piece(condition, access.tensor, point) if access.tensor.dtype == result.dtype else None


def _is_uniform(domain: Domain, pieces: tuple[Piece, ...], columns: Extent, vector: int) -> bool:
    """Return whether aligned vectors of columns lie in one piece, one element next to the other."""
    if not isinstance(columns, int) or columns % vector:
        return False
    for piece in pieces:
        if piece.condition is not None and not is_uniform(domain, piece.condition, columns, vector):
            return False
        if piece.tensor is None or piece.point is None:
            continue
        indices = domain.input_indices(piece.tensor.shape, piece.point)
        if not vectorizable(domain, indices, piece.tensor.shape, columns, vector):
            return False
    return True
