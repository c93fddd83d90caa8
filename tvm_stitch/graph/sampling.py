# SPDX-License-Identifier: Apache-2.0
"""Equality of index expressions with symbolic extents, by evaluation at sample sizes.

TVM's simplifier cannot cancel divisions by symbols, so that it proves almost nothing of a symbolic reshape. Two index
expressions that agree on whole index spaces, of several sizes of pairwise different symbols, are taken to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import compat
from ..compat import Expr, Var
from .extent import Extent, as_expr

SIZES = ((2, 3, 5, 7, 11), (5, 2, 7, 3, 4), (3, 7, 2, 4, 5), (1, 4, 3, 2, 6))
"""What the symbols stand for, sample by sample."""
MOST_POINTS = 20_000
"""Points looked at in a space; larger spaces are sampled at random."""


def equal_on_samples(a: Expr, b: Expr, axes: Sequence[tuple[Var, Extent]]) -> bool:
    """Do two index expressions over ``axes`` agree wherever looked?

    False when an expression holds anything but integer arithmetic, axes and symbols (or too many symbols).
    """
    try:
        symbols = _symbols([a, b, *(as_expr(e) for _, e in axes)], {v for v, _ in axes})
        if len(symbols) > len(SIZES[0]):
            return False
        rng = np.random.default_rng(0)
        for sizes in SIZES:
            values: dict[Var, np.ndarray] = {v: np.asarray(n) for v, n in zip(symbols, sizes)}
            extents = [int(_evaluate(as_expr(e), values)) for _, e in axes]
            for (v, _), grid in zip(axes, _points(extents, rng)):
                values[v] = grid
            if np.any(_evaluate(a, values) != _evaluate(b, values)):
                return False
        return True
    except (NotImplementedError, ZeroDivisionError, KeyError):
        return False


def _symbols(exprs: Sequence[Expr], axes: set[Var]) -> list[Var]:
    found: dict[Var, None] = {}
    for e in exprs:
        for v in sorted(compat.free_vars(e), key=str):
            if v not in axes:
                found[v] = None
    return list(found)


def _points(extents: Sequence[int], rng: np.random.Generator) -> list[np.ndarray]:
    total = int(np.prod(extents, dtype=np.int64)) if extents else 1
    if total <= MOST_POINTS:
        return [g.reshape(-1) for g in np.meshgrid(*(np.arange(e) for e in extents), indexing="ij")]
    return [np.concatenate([[0, e - 1], rng.integers(0, e, MOST_POINTS)]) for e in extents]


def _evaluate(e: Expr, values: dict[Var, np.ndarray]) -> np.ndarray:
    kind = compat.kind(e)
    if kind == "IntImm":
        return np.asarray(int(e.value))
    if kind in ("Var", "SizeVar"):
        return values[e]
    if kind == "Cast":
        return _evaluate(e.value, values)
    if kind not in ("Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Min", "Max"):
        raise NotImplementedError(kind)
    a, b = _evaluate(e.a, values), _evaluate(e.b, values)
    if kind in ("FloorDiv", "FloorMod") and np.any(b == 0):
        raise ZeroDivisionError
    functions = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "FloorDiv": np.floor_divide,
        "FloorMod": np.mod, "Min": np.minimum, "Max": np.maximum,
    }  # fmt: skip
    return functions[kind](a, b)
