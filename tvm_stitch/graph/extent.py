# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on extents: Python ints if static, TIR expressions if symbolic."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

from .. import compat
from ..compat import Analyzer, Expr, Var
from .sizes import Size, named

Extent: TypeAlias = int | Expr
Value = TypeVar("Value")


def as_plain_text(text: str) -> str:
    """Return a text with the extents in it as numbers and symbols: ``n + 6`` for TVM's ``n + T.int64(6)``."""
    numbers = re.sub(r"\bT\.u?int\d+\((-?\d+)\)", r"\1", text)
    return re.sub(r"\bT\.(?=[a-z]\w*\()", "", numbers)


def as_extent(expr: Expr) -> Extent:
    """Return a Python int for a constant, the expression itself otherwise."""
    value = compat.int_value(expr)
    return expr if value is None else value


def as_expr(extent: Extent) -> Expr:
    """Return the extent as an int64 TIR expression."""
    return compat.const(extent, "int64") if isinstance(extent, int) else extent


def bounded(axes: Iterable[tuple[Var, Extent]]) -> Analyzer:
    """Return an analyzer that knows how far variables run: each from 0 to below its extent."""
    analyzer = Analyzer()
    for var, extent in axes:
        compat.bind_range(analyzer, var, as_expr(extent))
    return analyzer


def product(extents: Iterable[Extent]) -> Extent:
    """Return the product of extents, with constant factors folded together."""
    number, symbols = 1, None
    for e in extents:
        if isinstance(e, int):
            number *= e
        else:
            symbols = e if symbols is None else symbols * e
    if symbols is None or number == 0:
        return number
    return symbols if number == 1 else symbols * compat.const(number, "int64")


def text_of(extent: Extent) -> str:
    """Return an extent as text for readers: ``8``, ``n``, ``n * 2`` or ``n * m * 4 + 16``."""
    return str(size_of(extent))


def size_of(extent: Extent) -> Size:
    """Return an extent as a size.

    Symbols of the same name become the same unknown. Operations other than sums and products become names.
    """
    number = extent if isinstance(extent, int) else compat.int_value(extent)
    if number is not None:
        return number
    assert not isinstance(extent, int)
    kind = compat.kind(extent)
    if kind in ("Add", "Sub"):
        a, b = size_of(extent.a), size_of(extent.b)
        return a + b if kind == "Add" else a - b
    if kind == "Mul":
        return size_of(extent.a) * size_of(extent.b)
    plain = re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(extent))
    return named(re.sub(r"\bT\.(?=[a-z_]+\()", "", plain))


def total(extents: Iterable[Extent]) -> Extent:
    """Return the sum of extents, with constants folded together."""
    number, symbols = 0, None
    for e in extents:
        if isinstance(e, int):
            number += e
        else:
            symbols = e if symbols is None else symbols + e
    if symbols is None:
        return number
    return symbols if number == 0 else symbols + compat.const(number, "int64")


def same(a: Extent, b: Extent, analyzer: Analyzer | None = None) -> bool:
    """Return whether the two extents are provably equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if a is b:
        return True
    return bool((analyzer or Analyzer()).can_prove_equal(as_expr(a), as_expr(b)))


def is_multiple(extent: Extent, number: int) -> bool:
    """Return whether an extent is provably a multiple of a number."""
    if isinstance(extent, int):
        return extent % number == 0
    known = Analyzer().modular_set(extent)
    return int(known.coeff) % number == 0 and int(known.base) % number == 0


def is_number(extent: Extent, number: int) -> bool:
    """Return whether an extent is static and equal to a number."""
    return isinstance(extent, int) and extent == number


def extent_key(extent: Extent) -> Hashable:
    """Return a key that is equal for extents of equal structure, whatever the names of their symbols."""
    return extent if isinstance(extent, int) else compat.expression_key(extent)


class ByExtent(Mapping[Extent, Value]):
    """A read-only, ordered mapping from extents to values. Keys are compared by their structure."""

    def __init__(self, items: Iterable[tuple[Extent, Value]] = ()):
        self._entries = {extent_key(extent): (extent, value) for extent, value in items}

    def __getitem__(self, extent: Extent) -> Value:
        return self._entries[extent_key(extent)][1]

    def __iter__(self) -> Iterator[Extent]:
        return (extent for extent, _ in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{extent}: {value}" for extent, value in self._entries.values()) + "}"


def same_shape(a: Sequence[Extent], b: Sequence[Extent]) -> bool:
    """Return whether two shapes have provably equal extents."""
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))


def is_static(extents: Iterable[Extent]) -> bool:
    """Return whether every extent is a Python int."""
    return all(isinstance(e, int) for e in extents)


def static_extent(extent: Extent) -> int:
    """Return an extent that the caller knows to be static, as in multi-stage kernels or with a grid barrier."""
    assert isinstance(extent, int), f"{extent} is symbolic"
    return extent


def ceildiv(total: Extent, part: int) -> Extent:
    """Return the quotient of an extent and a positive number, rounded up."""
    if isinstance(total, int):
        return -(-total // part)
    return total if part == 1 else compat.tir.floordiv(total + as_expr(part - 1), as_expr(part))


def quotient(total: Extent, part: Extent, analyzer: Analyzer | None = None) -> Extent | None:
    """Return ``total / part`` if the division is provably exact, else None."""
    if isinstance(total, int) and isinstance(part, int):
        return total // part if part and total % part == 0 else None
    analyzer = analyzer or Analyzer()
    if same(total, part, analyzer):
        return 1
    cancelled = _cancelled(total, part)
    if cancelled is not None:
        return cancelled
    guess = as_extent(analyzer.simplify(compat.tir.floordiv(as_expr(total), as_expr(part))))
    return guess if same(product([guess, part]), total, analyzer) else None


def _cancelled(total: Extent, part: Extent) -> Extent | None:
    """Return ``total`` without the factors of ``part``, or None if a factor of ``part`` is missing in ``total``."""
    number, symbols = factors(total)
    divisor, others = factors(part)
    if divisor == 0 or number % divisor:
        return None
    for factor in others:
        position = next((i for i, s in enumerate(symbols) if compat.structural_equal(s, factor)), None)
        if position is None:
            return None
        del symbols[position]
    return product([number // divisor, *symbols])


def factors(extent: Extent) -> tuple[int, list[Expr]]:
    """Return the constant factor of an extent, and its other factors."""
    value = extent if isinstance(extent, int) else compat.int_value(extent)
    if value is not None:
        return value, []
    assert not isinstance(extent, int)
    if compat.kind(extent) != "Mul":
        return 1, [extent]
    (a, left), (b, right) = factors(extent.a), factors(extent.b)
    return a * b, [*left, *right]


def flatten(indices: Sequence[Expr], extents: Sequence[Extent]) -> Expr:
    """Return the row-major flat index of a point."""
    flat: Expr = compat.const(0, "int64")
    for index, extent in zip(indices, extents):
        flat = flat * as_expr(extent) + index
    return flat


def unflatten(flat: Expr, extents: Sequence[Extent]) -> list[Expr]:
    """Return the point whose row-major flat index is ``flat`` (the outermost index needs no modulo)."""
    tir = compat.tir
    indices: list[Expr] = []
    live = [i for i, e in enumerate(extents) if not is_number(e, 1)]
    outermost = live[0] if live else -1
    for i in reversed(range(len(extents))):
        if i not in live:
            indices.append(compat.const(0, "int64"))
        elif i == outermost:
            indices.append(flat)
        else:
            extent = as_expr(extents[i])
            indices.append(tir.floormod(flat, extent))
            flat = tir.floordiv(flat, extent)
    return indices[::-1]
