# SPDX-License-Identifier: Apache-2.0
"""Reduction operators: how two partial results combine, on every level of a reduction."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np

from .. import compat
from ..compat import Expr, tir
from ..graph.ir import Operator
from .arithmetic import DEVICE, Arithmetic
from .evaluator import HALF, compute_dtype

NODES = {"sum": tir.Add, "prod": tir.Mul, "max": tir.Max, "min": tir.Min, "all": tir.And, "any": tir.Or}
"""The operations by which reductions combine."""


def combine(combiner: str, a: Expr, b: Expr, arithmetic: Arithmetic = DEVICE) -> Expr:
    """Combine two partial results of equal dtype."""
    if combiner not in NODES:
        raise ValueError(f"unknown combiner {combiner!r}: one of {', '.join(NODES)}")
    if combiner in ("all", "any"):
        return NODES[combiner](a, b)
    return arithmetic.binary(NODES[combiner], a, b)


def accumulator_dtype(op: Operator) -> str:
    """The dtype a reduction accumulates in."""
    return compute_dtype(op.output.dtype)


def identity(op: Operator) -> Expr:
    """The start value of a reduction in its accumulation dtype, rounded as the operator's own dtype rounds it."""
    value: Expr = op.identity
    dtype = accumulator_dtype(op)
    if compat.kind(value) == "FloatImm" and op.output.dtype in HALF:
        with np.errstate(over="ignore"):
            return compat.const(float(np.asarray(float(value.value)).astype(op.output.dtype)), dtype)
    if compat.kind(value) in ("FloatImm", "IntImm"):
        return compat.const(value.value, dtype)
    return value if compat.dtype_of(value) == dtype else tir.Cast(dtype, value)


def through_shuffle(dtype: str) -> str:
    """The dtype in which a value travels between lanes (shuffles move 4 or 8 bytes)."""
    return "int32" if dtype in ("bool", "int8", "int16", "uint8", "uint16") else dtype
