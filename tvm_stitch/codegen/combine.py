# SPDX-License-Identifier: Apache-2.0
"""Reduction operators: the combination of two partial results, on every level of a reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np

from .. import compat
from ..compat import Expr, tir
from ..graph.combiners import COMBINERS
from ..graph.ir import Operator
from ..repairs.tir.arithmetic import DEVICE, Arithmetic
from .evaluator import HALF, compute_dtype

NODES = {name: getattr(tir, combiner.node) for name, combiner in COMBINERS.items()}
"""The operations by which reductions combine."""


def combine(combiner: str, a: Expr, b: Expr, arithmetic: Arithmetic = DEVICE) -> Expr:
    """Combine two partial results of equal dtype."""
    if combiner not in NODES:
        raise ValueError(f"unknown combiner {combiner!r}: one of {', '.join(NODES)}")
    if combiner in ("all", "any"):
        return NODES[combiner](a, b)
    return arithmetic.binary(NODES[combiner], a, b)


def accumulator_dtype(op: Operator) -> str:
    """Return the dtype in which a reduction accumulates."""
    return compute_dtype(op.output.dtype)


def identity(op: Operator) -> Expr:
    """Return the start value of a reduction in its accumulation dtype, rounded to the operator's own dtype."""
    value: Expr = op.identity
    dtype = accumulator_dtype(op)
    if compat.kind(value) == "FloatImm" and op.output.dtype in HALF:
        with np.errstate(over="ignore"):
            return compat.const(float(np.asarray(float(value.value)).astype(op.output.dtype)), dtype)
    if compat.kind(value) in ("FloatImm", "IntImm"):
        return compat.const(value.value, dtype)
    return value if compat.dtype_of(value) == dtype else tir.Cast(dtype, value)


def in_order(op: Operator, parts: Sequence[Expr]) -> Expr:
    """Combine partial results one after the other."""
    return reduce(lambda a, b: combine(op.combiner or "", a, b), parts)


def in_pairs(
    op: Operator, parts: Sequence[Expr], named: Callable[[Expr], Expr] = lambda value: value
) -> Expr:
    """Combine partial results as a tree, for short dependency chains. ``named`` is applied to every result."""
    parts = list(parts)
    while len(parts) > 1:
        pairs = [named(combine(op.combiner or "", a, b)) for a, b in zip(parts[::2], parts[1::2])]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]
