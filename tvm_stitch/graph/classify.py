# SPDX-License-Identifier: Apache-2.0
"""Classify operators by their expression and access patterns, never by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import compat
from ..compat import Expr
from .ir import Access, OpClass, Span

HEAVY_CALLS = frozenset(
    "exp exp2 exp10 log log2 log10 log1p pow tanh erf sigmoid sin cos tan sinh cosh asin acos atan asinh acosh atanh"
    " atan2 sqrt rsqrt hypot fmod".split()
)
"""Calls that cost several instructions per element (AStitch's 'expensive element-wise')."""

DEVICE_FUNCTION = "tvm_stitch_"
"""Prefix that turns a call's name into the name of its device function."""


def _nodes(value: Expr) -> Iterator[Expr]:
    yield value
    if not compat.is_load(value):
        for e in compat.operands(value):
            yield from _nodes(e)


def is_heavy(value: Expr) -> bool:
    """Return whether evaluating the expression costs more than a few simple instructions."""
    for e in _nodes(value):
        if compat.kind(e) == "Call":
            if compat.call_name(e) in HEAVY_CALLS:
                return True
            args = compat.elements(e.args)
            if args and compat.kind(args[0]) == "StringImm":
                name = str(args[0].value)
                if name.startswith(DEVICE_FUNCTION) and name.removeprefix(DEVICE_FUNCTION) in HEAVY_CALLS:
                    return True
        if compat.kind(e) in ("Div", "Mod") and compat.dtype_of(e).startswith(("float", "bfloat")):
            if compat.kind(e.b) != "FloatImm":
                return True
    return False


def classify(value: Expr, accesses: Sequence[Access], combiner: str | None) -> OpClass:
    """Return the class of an operator with the given right-hand side."""
    if combiner is not None:
        return OpClass.REDUCE
    if compat.is_load(value) or (compat.kind(value) == "Cast" and compat.is_load(value.value)):
        span = accesses[0].span if len(accesses) == 1 else Span.OTHER
        if span is Span.ALL and compat.kind(value) == "Cast":
            return OpClass.LIGHT
        if span in (Span.LEADING, Span.TRAILING, Span.NOTHING):
            return OpClass.BROADCAST
        return OpClass.MOVE
    if compat.is_choice(value):
        return OpClass.MOVE
    return OpClass.HEAVY if is_heavy(value) else OpClass.LIGHT


def without_casts(value: Expr) -> Expr:
    """Return the value behind the casts of an expression."""
    while compat.kind(value) == "Cast":
        value = value.value
    return value


def is_contraction(value: Expr, combiner: str | None) -> bool:
    """Return whether a reduction sums products of two differently indexed reads: matmul, conv, einsum
    (compute-intensive).
    """
    if combiner != "sum":
        return False
    value = without_casts(value)
    if compat.kind(value) != "Mul":
        return False
    a, b = _first_load(value.a), _first_load(value.b)
    if a is None or b is None:
        return False
    return [*map(compat.expression_key, a.indices)] != [*map(compat.expression_key, b.indices)]


def _first_load(value: Expr) -> Expr | None:
    for e in _nodes(value):
        if compat.is_load(e):
            return e
    return None
