# SPDX-License-Identifier: Apache-2.0
"""Finding and classifying the reads of a scalar expression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import compat
from ..compat import Analyzer, Expr, has_load
from .extent import Extent, as_expr, flatten, is_number, is_static, product, same
from .index_equality import equal_indices
from .ir import Axis, Span


def loads(value: Expr, guarded: bool = False) -> Iterator[tuple[Expr, bool]]:
    """Yield every load in ``value`` with whether a condition guards it (loads in indices included)."""
    if compat.is_load(value):
        yield value, guarded
    chosen = branches(value)
    if chosen is not None:
        yield from loads(chosen[0], guarded)
        yield from loads(chosen[1], True)
        yield from loads(chosen[2], True)
        return
    for e in compat.operands(value):
        yield from loads(e, guarded)


def branches(value: Expr) -> tuple[Expr, Expr, Expr] | None:
    """Return the condition and both branches of an expression that evaluates only one branch, else None.

    Such expressions are ``if_then_else`` and a ``Select`` with a gather in a branch. TVM turns such a ``Select``
    into an ``if_then_else``, because the index of a gather may be out of bounds while the other branch is chosen.
    An example is the ignored label of a loss.
    """
    if compat.is_choice(value):
        return value.args[0], value.args[1], value.args[2]
    if compat.kind(value) == "Select" and (gathers(value.true_value) or gathers(value.false_value)):
        return value.condition, value.true_value, value.false_value
    return None


def gathers(value: Expr) -> bool:
    """Return whether the expression reads at an index that is itself read."""
    return any(
        compat.is_load(e) and any(map(has_load, compat.elements(e.indices))) for e in compat.parts(value)
    )


def span_of(indices: Sequence[Expr], shape: Sequence[Extent], axes: Sequence[Axis]) -> tuple[Span, int]:
    """Classify an access by its flat index over the axes (see :class:`~tvm_stitch.graph.ir.Span`)."""
    if any(has_load(i) for i in indices):
        return Span.OTHER, 0
    live = [i for i, a in enumerate(axes) if not is_number(a.extent, 1)]
    kept = [(i, e) for i, e in zip(indices, shape) if not is_number(e, 1)]
    used = {v for i, _ in kept for v in compat.free_vars(i)}
    position = {axes[i].var: i for i in live}
    mentioned = sorted(position[v] for v in used if v in position)
    if not mentioned:
        return (Span.NOTHING, 0) if not kept else (Span.OTHER, 0)
    # The common case, decided without the analyzer: the remaining indices are axis variables in order.
    plain = [compat.kind(i) in ("Var", "SizeVar") and i in position for i, _ in kept]
    order = [position[i] for (i, _), p in zip(kept, plain) if p]
    first, last = mentioned[0], mentioned[-1]
    leading, trailing = first == live[0], last == live[-1]
    if not (leading or trailing):
        return Span.OTHER, 0
    if all(plain):
        exact = order == [i for i in live if first <= i <= last]
        exact = exact and all(same(axes[p].extent, e) for p, (_, e) in zip(order, kept))
    else:
        exact = _flat_equal(kept, [axes[i] for i in live if first <= i <= last], axes)
    if not exact:
        return Span.OTHER, 0
    if leading and trailing:
        return Span.ALL, len(axes)
    return (Span.LEADING, last + 1) if leading else (Span.TRAILING, first)


def _flat_equal(kept: list[tuple[Expr, Extent]], part: list[Axis], axes: Sequence[Axis]) -> bool:
    """Return whether the tensor's flat index is the flat index over ``part``, and both have the same size."""
    analyzer = Analyzer()
    if not same(product(e for _, e in kept), product(a.extent for a in part), analyzer):
        return False
    values = {}
    for a in axes:
        if is_number(a.extent, 1):
            values[a.var] = compat.const(0, "int64")
        else:
            compat.bind_range(analyzer, a.var, as_expr(a.extent))
    access = compat.substitute(flatten([i for i, _ in kept], [e for _, e in kept]), values)
    wanted = flatten([a.var for a in part], [a.extent for a in part])
    if is_static(a.extent for a in axes) and is_static(e for _, e in kept):
        return bool(analyzer.can_prove_equal(access, wanted))
    # The tensor has as many elements as ``part`` has points, so at any point no dimension is 0.
    space = [(a.var, a.extent) for a in axes if not is_number(a.extent, 1)]
    return equal_indices(access, wanted, space, [e for _, e in kept])
