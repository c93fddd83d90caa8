# SPDX-License-Identifier: Apache-2.0
"""Contiguity of neighbouring columns: if they are adjacent, aligned elements in memory, a vector may move them."""

from __future__ import annotations

from collections.abc import Sequence

from ... import compat
from ...compat import Analyzer, Expr, Var
from ...graph.dtype import item_bytes
from ...graph.extent import Extent, as_expr, flatten
from .domain import Domain


def access_elements(
    domain: Domain, indices: Sequence[Expr], shape: Sequence[Extent], dtype: str, columns: Extent, vector: int,
    every: int = 1,
) -> int:  # fmt: skip
    """Return how many elements one access to memory moves, of vectors of ``vector`` columns, 1 for scalar accesses.

    Args:
        domain: the domain in whose row and column variables ``indices`` are written.
        indices: the element that is read or written at a row and column.
        shape: the shape of the memory, whose elements are ``dtype``.
        columns: the size of the column space.
        vector: columns of a thread's vector. An access moves 16 bytes at most.
        every: neighbouring columns that read the same element, as :func:`repeated` returns them.
    """
    elements = min(vector // every, 16 // item_bytes(dtype))
    if dtype == "bool" or elements == 1:
        return 1
    return elements if vectorizable(domain, indices, shape, columns, vector, every) else 1


def vectorizable(
    domain: Domain,
    indices: Sequence[Expr],
    shape: Sequence[Extent],
    columns: Extent,
    vector: int,
    every: int = 1,
) -> bool:
    """Return whether ``vector`` columns from an aligned column on are consecutive elements at an aligned offset.

    ``indices`` are written in the domain's row and column variables. Multiples that the domain assumes count as such.
    Of columns that read the same element only each first one counts: one of ``every``.
    """
    along, across = (domain.column, columns), (domain.row, domain.rows)
    return _consecutive(domain, indices, shape, along, across, vector // every, every)


def repeated(
    domain: Domain, indices: Sequence[Expr], shape: Sequence[Extent], columns: int, most: int
) -> int:
    """Return how many neighbouring columns, from an aligned one on, certainly read the same element.

    It is a power of two up to ``most`` that divides ``columns``. The words of packed integers and the scales of
    groups are read so.
    """
    while most > 1:
        if columns % most == 0 and _is_repeated(domain, indices, shape, columns, most):
            return most
        most //= 2
    return 1


def _is_repeated(
    domain: Domain, indices: Sequence[Expr], shape: Sequence[Extent], columns: int, count: int
) -> bool:
    analyzer = Analyzer()
    group, element = compat.tir.Var("group", "int64"), compat.tir.Var("element", "int64")
    compat.bind_range(analyzer, domain.row, as_expr(domain.rows))
    compat.bind_range(analyzer, group, as_expr(columns // count))
    compat.bind_range(analyzer, element, as_expr(count))
    flat = as_expr(flatten(indices, shape))
    here = compat.substitute(flat, {domain.column: group * count + element})
    first = compat.substitute(flat, {domain.column: group * count})
    return bool(analyzer.can_prove_equal(here, first))


def rows_vectorizable(
    domain: Domain, indices: Sequence[Expr], shape: Sequence[Extent], columns: Extent, vector: int
) -> bool:
    """Return the same of ``vector`` rows from an aligned row on, in any one column."""
    return _consecutive(domain, indices, shape, (domain.row, domain.rows), (domain.column, columns), vector)


def _consecutive(
    domain: Domain, indices: Sequence[Expr], shape: Sequence[Extent], along: tuple[Var, Extent],
    across: tuple[Var, Extent], vector: int, every: int = 1,
) -> bool:  # fmt: skip
    """Return whether elements along one variable of the domain are consecutive, whatever the other variable is.

    Each variable comes with its extent. Elements are ``every`` steps apart.
    """
    if vector == 1:
        return True
    analyzer = Analyzer()
    group = compat.tir.Var("group", "int64")
    compat.bind_range(analyzer, across[0], as_expr(across[1]))
    variable, extent = along
    steps = vector * every
    groups = extent // steps if isinstance(extent, int) else compat.tir.floordiv(as_expr(extent), steps)
    compat.bind_range(analyzer, group, as_expr(groups))

    # Quotients and remainders of a position are joined before it is written as that of an element of a vector.
    compat.bind_range(analyzer, variable, as_expr(extent))
    flat = analyzer.simplify(as_expr(flatten(indices, shape)))

    def offset(element: int) -> Expr:
        position = group * steps + element * every
        return as_expr(domain.in_multiples(compat.substitute(flat, {variable: position})))

    first = analyzer.simplify(offset(0))
    modular = analyzer.modular_set(first)
    if int(modular.base) % vector or (int(modular.coeff) % vector and int(modular.coeff) != 0):
        return False
    return all(analyzer.can_prove_equal(offset(e) - offset(0), e) for e in range(1, vector))
