# SPDX-License-Identifier: Apache-2.0
"""Small expressions over special values, and their results, to test arithmetic that compilers tend to simplify.

An expression is a tree: the name of an operand (``"x"``, ``"y"``), a number, or an operator with trees. Operators
have the names of ``tvm.relax.op``. ``astype`` has a dtype behind its tree. One module computes many trees, each as an
output of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

Tree = Any  # str | float | tuple

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
NUMPY: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in "add subtract multiply divide floor_divide maximum minimum negative abs where left_shift right_shift "
    "bitwise_not logical_not logical_and logical_or".split()
    + list(COMPARISONS)
} | {"floor_mod": np.mod}
"""The operators in NumPy, whose integers wrap around and whose floats follow IEEE 754."""


def special_values(dtype: str) -> np.ndarray:
    """Return NaN, infinities, zeros of both signs, least and greatest numbers. Integers are those around overflow."""
    of = np.dtype(dtype)
    if of.kind in "iu":
        i = np.iinfo(of)
        values = [
            0,
            1,
            2,
            3,
            7,
            100,
            i.max,
            i.max - 1,
            i.max // 2,
            i.max // 2 + 1,
            i.min,
            i.min + 1,
            i.min // 2,
        ]
        values += [-1, -2, -3, -100] if of.kind == "i" else []
        return np.array(values, dtype=of)
    f = ml_dtypes.finfo(of)
    least, tiny, most = float(f.smallest_subnormal), float(f.tiny), float(f.max)
    return np.array(
        [np.nan, np.inf, -np.inf, 0.0, -0.0, least, -least, tiny, most, -most, 1, -1, 2.5, -3.5]
    ).astype(of)


def special_pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Pair every special value with every other. Their number is odd, so kernels use no vectors and are small."""
    values = special_values(dtype)
    x, y = (a.ravel() for a in np.meshgrid(values, values, indexing="ij"))
    return (x, y) if len(x) % 2 else (np.append(x, x[-1:]), np.append(y, y[-1:]))


def float_trees() -> list[Tree]:
    """Return trees that a simplifier gets wrong if it takes floats for real numbers, and similar ones."""
    inner: list[Tree] = ["x", ("negative", "x"), ("add", "x", 1), ("add", 1e4, "x")]
    inner += [(op, "x", "y") for op in ("add", "subtract", "multiply", "divide", "maximum", "minimum")]
    trees: list[Tree] = []
    for e in inner:
        trees += [(op, e, e) for op in ("subtract", "divide", "maximum", *COMPARISONS)]
        for op in ("subtract", "equal", "not_equal", "less_equal", "maximum", "minimum"):
            trees += [(op, e, "x"), (op, "x", e)]
        trees += [("subtract", e, 1), ("subtract", e, 1e4), ("logical_not", ("equal", e, e))]
    for op in COMPARISONS:
        order = (op, "x", "y")
        trees += [
            ("logical_not", order),
            ("logical_not", ("logical_not", order)),
            ("logical_not", (op, "x", 1)),
        ]
        trees += [("where", order, "x", "y"), ("where", ("logical_not", order), "x", "y")]
        for other in COMPARISONS:
            trees += [("logical_or", order, (other, "x", "y")), ("logical_and", order, (other, "y", "x"))]
    trees += [
        ("multiply", "x", 0),
        ("multiply", 0, "x"),
        ("divide", 0, "x"),
        ("divide", "x", 0),
        ("add", "x", 0),
    ]
    for op in ("maximum", "minimum"):
        trees += [(op, *pair) for c in (0, np.inf, -np.inf, np.nan) for pair in (("x", c), (c, "x"))]
        trees += [(op, (op, "x", 0), 1), ("maximum", ("minimum", "x", 1), -1)]
        trees += [(op, ("subtract", "x", "y"), 0), (op, ("maximum", "x", "y"), ("minimum", "y", "x"))]
    return trees


def integer_trees(dtype: str) -> list[Tree]:
    """Return trees whose results are wrong if an integer does not wrap around at its width."""
    inner: list[Tree] = [(op, "x", "y") for op in ("add", "subtract", "multiply")]
    inner += [
        ("add", "x", "x"),
        ("multiply", "x", 3),
        ("multiply", "x", 6),
        ("add", "x", 100),
        ("subtract", "x", 5),
    ]
    inner += [("left_shift", "x", 1), ("bitwise_not", "x")]
    if not dtype.startswith("u"):
        inner += [("negative", "x"), ("abs", "x"), ("floor_divide", "x", -1)]
    trees: list[Tree] = []
    for e in inner:
        trees += [("astype", e, to) for to in ("float32", "int64", "int32", "uint8") if to != dtype]
        trees += [(op, e, other) for op in ("less", "maximum", "minimum") for other in ("x", "y")]
        trees += [("equal", e, 0), ("greater", e, 5), ("less", e, 0), ("less", ("subtract", e, "y"), "y")]
        trees += [("floor_divide", e, 3), ("floor_divide", e, 2), ("floor_mod", e, 3), ("floor_mod", e, 4)]
        trees += [("right_shift", e, 1), ("subtract", e, e), ("where", ("greater", e, "x"), e, "y")]
    trees += [("less", ("add", "x", 1), ("add", "y", 1)), ("maximum", ("add", "x", 1), ("add", "y", 1))]
    return trees


def zero_trees() -> list[Tree]:
    """Return integer trees that are 0 for all x and y, as a simplifier may prove."""
    three = ("minimum", ("maximum", "x", 3), 3)
    zeros: list[Tree] = [("subtract", "x", "x"), ("multiply", "x", 0), ("subtract", three, 3)]
    zeros += [("minimum", ("maximum", "y", 0), 0), ("subtract", ("add", "x", "y"), ("add", "x", "y"))]
    return (
        zeros
        + [(op, zero, "y") for zero in zeros for op in ("add", "multiply")]
        + [("add", zeros[2], zeros[3])]
    )


def expected(tree: Tree, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Evaluate a tree in NumPy. Half types are computed in float32 and rounded at the end."""
    dtype = values["x"].dtype
    wide = np.dtype("float32") if dtype in (np.float16, ml_dtypes.bfloat16) else dtype

    def visit(e: Tree) -> Any:
        if isinstance(e, str):
            return values[e].astype(wide)
        if not isinstance(e, tuple):
            return np.array(e).astype(dtype).astype(wide)
        if e[0] == "astype":
            return visit(e[1]).astype(e[2])
        return NUMPY[e[0]](*map(visit, e[1:]))

    with np.errstate(all="ignore"):
        result = np.asarray(visit(tree))
        return result.astype(dtype) if result.dtype == wide else result


def construct(tree: Tree, operands: Mapping[str, Any], ops: Any, const: Callable[[Any], Any]) -> Any:
    """Build a tree in a front end: ``ops`` has the operators, ``const`` makes a scalar of the operands' dtype."""
    if isinstance(tree, str):
        return operands[tree]
    if not isinstance(tree, tuple):
        return const(tree)
    if tree[0] == "astype":
        return ops.astype(construct(tree[1], operands, ops, const), tree[2])
    return getattr(ops, tree[0])(*(construct(e, operands, ops, const) for e in tree[1:]))


def wrong(
    trees: Sequence[Tree], values: Mapping[str, np.ndarray], results: Sequence[np.ndarray], relative: float
) -> list[str]:
    """Write a line for every tree with a wrong result, with the first values that show it."""
    lines = []
    for tree, result in zip(trees, results, strict=True):
        want = expected(tree, values)
        bad = np.flatnonzero(~_same(result, want, relative))
        if len(bad):
            at = {name: array[bad[0]] for name, array in values.items()}
            lines.append(f"{tree} at {at}: {result[bad[0]]}, not {want[bad[0]]} ({len(bad)} elements)")
    return lines


def _same(a: np.ndarray, b: np.ndarray, relative: float) -> np.ndarray:
    if a.dtype != b.dtype or a.shape != b.shape:
        return np.zeros(b.shape, bool)
    if a.dtype.kind in "biu":
        return np.asarray(a == b)
    a, b = a.astype("float64"), b.astype("float64")
    with np.errstate(invalid="ignore"):
        close = np.abs(a - b) <= relative * np.abs(b)
    return (np.isnan(a) & np.isnan(b)) | (a == b) | (np.isfinite(b) & close)
