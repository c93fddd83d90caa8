# SPDX-License-Identifier: Apache-2.0
"""Slices of symbolic extents, legalized with bounds that are simplified.

Extents are not negative. With that, the extent of ``x[:, : n // 2]`` is ``n // 2``, and the slice begins at 0.

Fault: TVM's legalization does not know that extents are not negative, so it writes extents such as
    ``min(max(if_then_else(n < 0, n // 2 + n, n // 2), 0), n) - min(0, n)``. ``FuseOps`` raises for an extent with an
    ``if_then_else``. The types that TVM infers for operators have other extents, which may be negative.
Seen in: TVM 0.27.0
Input: ``R.divide(R.exp(R.strided_slice(x, [1], [0], [n // 2], [1])), 2)`` of x (4, n) float32
Upstream: none known
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tvm
from tvm import relax, te, tirx
from tvm.topi import tag

from ... import compat
from ...compat import Analyzer, Expr
from .declared_bounds import ENDLESS

Cut: TypeAlias = tuple[int, Expr, Expr, int]
"""Axis, begin, end and step of a slice along one axis."""


def _strided_slice(builder: Any, call: Any) -> Any:
    """Return a call of a function for a slice with a symbolic bound, and TVM's legalization for any other."""
    if cuts := _cuts_of(call):
        inbound = bool(call.attrs.assume_inbound)
        return builder.call_te(sliced, call.args[0], cuts, inbound, primfunc_name_hint="strided_slice")
    return call.op.get_attr("FLegalize")(builder, call)


def _cuts_of(call: Any) -> list[Cut]:
    """Return the axes that a slice cuts, or nothing if no bound is symbolic or one is unknown."""
    shape = getattr(call.args[0].ty, "shape", None)
    parts = [_expressions(arg) for arg in call.args[1:]]
    if not isinstance(shape, relax.ShapeExpr) or not all(parts):
        return []
    axes, begins, ends, *strides = parts
    places = [int(axis) % len(shape) for axis in axes]
    steps = [compat.int_value(step) or 0 for step in strides[0]] if strides else [1] * len(places)
    symbolic = any(compat.int_value(e) is None for e in [*begins, *ends, *(shape[axis] for axis in places)])
    return list(zip(places, begins, ends, steps)) if symbolic and all(steps) else []


SYMBOLIC_SLICES = {"relax.strided_slice": _strided_slice}
"""Legalizations for ``LegalizeOps``."""


def sliced(data: Any, cuts: Sequence[Cut], inbound: bool) -> Any:
    """Return a slice of a tensor.

    Args:
        data: the tensor.
        cuts: axis, begin, end and step for each axis that is cut. A step is not zero.
        inbound: whether begins and ends lie inside the tensor and are not counted from its end.
    """
    extents, firsts, steps = (
        list(data.shape),
        [tirx.const(0, "int64")] * len(data.shape),
        [1] * len(data.shape),
    )
    analyzer = bounded(data.shape)
    for axis, begin, end, step in cuts:
        if not inbound:
            begin, end = (_inside(bound, data.shape[axis], step, analyzer) for bound in (begin, end))
        span = end - begin if step > 0 else begin - end
        count = tirx.floordiv(span + (abs(step) - 1), abs(step))
        extents[axis] = analyzer.simplify(count if inbound else tirx.max(count, 0))
        firsts[axis], steps[axis] = analyzer.simplify(begin), step
    return te.compute(
        extents,
        lambda *i: data(*[_moved(v, first, step) for v, first, step in zip(i, firsts, steps)]),
        name="T_strided_slice",
        tag=tag.INJECTIVE,
    )


def bounded(shape: Sequence[Expr]) -> Analyzer:
    """Return an analyzer that knows that the symbols which are extents of a shape are not negative."""
    analyzer = Analyzer()
    for extent in shape:
        if isinstance(extent, tirx.Var):
            compat.bind_range(analyzer, extent, tirx.const(ENDLESS, "int64"))
    return analyzer


def _inside(bound: Expr, extent: Expr, step: int, analyzer: Analyzer) -> Expr:
    """Return a bound counted from the start, and clamped to the tensor."""
    least, most = (0, extent) if step > 0 else (-1, extent - 1)
    if (compat.int_value(bound) or 0) < 0:
        bound = bound + extent
    elif not analyzer.can_prove(bound >= 0) and not _is_below(bound, extent, least, analyzer):
        # A Select, not an if_then_else: an extent with a call makes FuseOps raise. Both sides are sums of integers.
        bound = tirx.Select(bound < 0, bound + extent, bound)
    if not _is_within(bound, most, analyzer):
        bound = tirx.min(bound, most)
    return tirx.max(bound, tirx.const(least, "int64"))


def _is_within(bound: Expr, most: Expr, analyzer: Analyzer) -> bool:
    """Return True if ``bound <= most`` is proved. A quotient of a number that is not negative is no greater than it."""
    if compat.kind(bound) == "FloorDiv" and (compat.int_value(bound.b) or 0) > 0:
        if analyzer.can_prove(bound.a >= 0) and _is_within(bound.a, most, analyzer):
            return True
    return bool(analyzer.can_prove(bound <= most))


def _is_below(bound: Expr, extent: Expr, least: int, analyzer: Analyzer) -> bool:
    """Return True if a negative bound lies in front of the tensor even if it is counted from the end.

    ``n - 1`` is such a bound of an extent ``n``: it is negative for ``n = 0`` only.
    """
    with analyzer.constraint_scope(bound < 0):
        return bool(analyzer.can_prove(bound + extent <= least))


def _moved(index: Expr, first: Expr, step: int) -> Expr:
    moved = index if step == 1 else index * tirx.const(step, "int64")
    return moved if compat.int_value(first) == 0 else first + moved


def _expressions(value: Any) -> list[Any]:
    """Return the integers and expressions of a tuple, or nothing for a tuple that is a variable."""
    fields = (
        getattr(value, "values", None)
        if isinstance(value, relax.ShapeExpr)
        else getattr(value, "fields", None)
    )
    return [*fields] if fields is not None and all(map(tvm.ir.is_prim_expr, fields)) else []
