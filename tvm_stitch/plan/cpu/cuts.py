# SPDX-License-Identifier: Apache-2.0
"""Positions in a segment at which conditions change, such as those of a concatenation or padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ... import compat
from ...compat import Expr
from ...graph.extent import Extent, bounded
from ..iteration.alignment import Alignment, Key
from ..iteration.domain import Domain
from .split import split_columns

_HOLDS: dict[str, Callable[[int], bool]] = {
    "LT": lambda d: d < 0,
    "LE": lambda d: d <= 0,
    "GT": lambda d: d > 0,
    "GE": lambda d: d >= 0,
    "EQ": lambda d: d == 0,
    "NE": lambda d: d != 0,
}


def cuts_of(alignment: Alignment, keys: Iterable[Key], columns: Extent, extent: int) -> tuple[int, ...]:
    """Return the positions in a segment at which the conditions of ``if_then_else`` change."""
    domain = alignment.domain
    positions = {0, extent}
    split = split_columns(domain, domain.column, columns, extent, 0)
    if split is None or extent < 2:
        return (0, extent)
    axes, column, inner = split
    analyzer = bounded(axes)
    for name, difference in differences(domain, keys):
        difference = compat.substitute(difference, {domain.column: column})
        zero = compat.const(0, "int64")
        start = analyzer.simplify(compat.substitute(difference, {inner: zero}))
        step = analyzer.simplify(difference - start)
        first = compat.int_value(start)
        if first is None:
            continue
        slope = compat.int_value(
            analyzer.simplify(compat.substitute(step, {inner: compat.const(1, "int64")}))
        )
        if not slope or not analyzer.can_prove_equal(step, inner * compat.const(slope, "int64")):
            continue
        zero_at = -first // slope  # the difference changes sign here or at the next position
        positions |= {
            at for at in (zero_at, zero_at + 1) if 0 < at < extent and _changes(name, first, slope, at)
        }
    return tuple(sorted(positions))


def differences(domain: Domain, keys: Iterable[Key]) -> Iterator[tuple[str, Expr]]:
    """Yield the comparisons in conditions of values, each with its difference to 0 in the domain's variables."""
    for op, point in keys:
        values = None
        for name, left, right in _comparisons(op.value):
            if values is None:
                values = domain.axis_values(op, point)
            yield name, compat.substitute(left - right, values)


def _changes(comparison: str, first: int, slope: int, at: int) -> bool:
    """Return whether comparing ``first + slope * i`` with 0 differs between ``i = at - 1`` and ``i = at``."""
    holds = _HOLDS[comparison]
    return holds(first + slope * (at - 1)) != holds(first + slope * at)


def _comparisons(value: Expr, inside: bool = False) -> Iterator[tuple[str, Expr, Expr]]:
    """Yield the integer comparisons, without loads, in conditions of ``if_then_else``."""
    name = compat.kind(value)
    if inside and name in _HOLDS:
        if compat.dtype_of(value.a).startswith("int") and not compat.has_load(value):
            yield name, value.a, value.b
        return
    if compat.is_load(value):
        return
    if compat.is_choice(value):
        yield from _comparisons(value.args[0], True)
        yield from _comparisons(value.args[1])
        yield from _comparisons(value.args[2])
        return
    for e in compat.operands(value):
        yield from _comparisons(e, inside)
