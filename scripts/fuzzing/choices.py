# SPDX-License-Identifier: Apache-2.0
"""Choices of a next step, with their weights: element-wise operators, reductions and data movement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .bounded import FLOATS
from .case import Dim
from .grower import Grower, Skip

SMOOTH = ["exp", "tanh", "sigmoid", "erf", "sin", "cos", "square", "abs", "negative", "relu", "silu", "gelu"]
ROUGH = ["sqrt", "rsqrt", "log", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"]
PLAIN = ["ceil", "floor", "trunc", "round", "sign", "relu6", "leakyrelu", "selu", "gelu_tanh"]


def floating(g: Grower) -> Callable[[int], bool]:
    """Accepts values of a float dtype."""
    return lambda v: g.dtype_of(v) in FLOATS


def unary(g: Grower) -> None:
    """Add an operator of one tensor."""
    x = g.pick()
    dtype = g.dtype_of(x)
    if dtype in FLOATS:
        name = g.rng.choice(g.rng.choice([SMOOTH, SMOOTH, ROUGH, PLAIN, ["isnan", "isinf", "isfinite"]]))
        if dtype == "bfloat16" and name.startswith("is"):
            raise Skip  # TVM has none
    elif dtype == "bool":
        name = "logical_not"
    else:
        name = g.rng.choice(["abs", "negative", "bitwise_not", "sign", "relu"])
        if name in ("abs", "negative", "sign") and dtype.startswith("uint"):
            name = "bitwise_not"
    if name in ("log", "sqrt", "rsqrt") and g.rng.random() < 0.7:
        x = g.add("abs", (x,))
        x = g.add("add", (x,), {"scalar": g.rng.choice([0.5, 1.0, 0.125])})
    g.add(name, (x,))


ARITHMETIC = ["add", "subtract", "multiply", "maximum", "minimum"]
BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor"]
COMPARE = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


def _partner(g: Grower, x: int) -> int | None:
    """Return a value that broadcasts against ``x``, None for a scalar."""
    if g.rng.random() < 0.12:
        return x
    if g.rng.random() < 0.25:
        return None
    dtype, shape = g.dtype_of(x), g.shape(x)
    fits = [
        v
        for v in range(len(g.live.values))
        if v != x and g.dtype_of(v) == dtype and _broadcasts(shape, g.shape(v))
    ]
    if fits:
        return g.rng.choice(fits[-6:] if g.rng.random() < 0.5 else fits)
    suffix = [d if isinstance(d, int) and g.rng.random() < 0.7 else 1 for d in shape]
    return g.source(suffix[g.rng.randint(0, len(suffix)) :], dtype)


def _broadcasts(a: list[Dim], b: list[Dim]) -> bool:
    return all(x == y or x == 1 or y == 1 for x, y in zip(reversed(a), reversed(b)))


def _literal(g: Grower, dtype: str) -> float | int:
    if dtype in FLOATS:
        return g.rng.choice([0.0, 1.0, 2.0, 0.5, -1.0, -2.5, 3.0, 0.1, 100.0])
    return g.rng.choice([0, 1, 2, 3, 7, 100])


def binary(g: Grower) -> None:
    """Add an operator of two tensors, or of one and a scalar."""
    x = g.pick()
    dtype = g.dtype_of(x)
    if dtype in FLOATS:
        rare = ["power", "floor_divide", "floor_mod", "atan2"]
        name = g.rng.choice(g.rng.choice([ARITHMETIC, ARITHMETIC, ["divide"], COMPARE, rare]))
    elif dtype == "bool":
        name = g.rng.choice(["logical_and", "logical_or", "logical_xor", *BITWISE])
    else:
        name = g.rng.choice(
            g.rng.choice([ARITHMETIC, ARITHMETIC, BITWISE, COMPARE, ["floor_divide", "floor_mod"], ["shift"]])
        )
    if name in ("shift", "floor_divide", "floor_mod") and dtype not in FLOATS:
        bits = int("".join(c for c in dtype if c.isdigit()))
        literal = g.rng.choice([1, 2, 3, 7, 10])
        if name == "shift":
            name, literal = g.rng.choice(["left_shift", "right_shift"]), g.rng.randrange(bits)
        g.add(name, (x,), {"scalar": literal})
        return
    if name == "power" and g.rng.random() < 0.7:
        g.add(name, (x,), {"scalar": g.rng.choice([2.0, 3.0, 0.5, -1.0, -0.5, 1.5, 4.0, 0.0, 1.0])})
        return
    y = _partner(g, x)
    if y is None:
        if dtype == "bool":
            raise Skip
        g.add(name, (x,), {"scalar": _literal(g, dtype), "reverse": g.rng.random() < 0.3})
        return
    g.add(name, (x, y) if g.rng.random() < 0.5 else (y, x))


def condition(g: Grower, shape: list[Dim]) -> int:
    """Return a boolean tensor that broadcasts to the shape."""
    fits = [
        v for v in range(len(g.live.values)) if g.dtype_of(v) == "bool" and _broadcasts(shape, g.shape(v))
    ]
    if fits and g.rng.random() < 0.5:
        return g.rng.choice(fits)
    x = g.pick(lambda v: _broadcasts(shape, g.shape(v)) and g.dtype_of(v) != "bool")
    return g.add(g.rng.choice(COMPARE), (x,), {"scalar": _literal(g, g.dtype_of(x))})


def select(g: Grower) -> None:
    """where, masked_fill, clip."""
    kind = g.rng.choice(["where", "where", "masked_fill", "clip"])
    x = g.pick(lambda v: g.dtype_of(v) != "bool")
    dtype = g.dtype_of(x)
    if kind == "clip":
        low, high = g.rng.choice([(0, 6), (-1, 1), (-3, 100)])
        if dtype.startswith("uint"):
            low = 0
        cast: Any = float if dtype in FLOATS else int
        g.add("clip", (x,), {"low": cast(low), "high": cast(high)})
        return
    mask = condition(g, g.shape(x))
    if kind == "masked_fill":
        value = g.rng.choice([0.0, -1e4, 1.0, 5.0]) if dtype in FLOATS else g.rng.choice([0, 1, 7])
        g.add("masked_fill", (x, mask), {"value": value})
        return
    y = _partner(g, x)
    y = x if y is None else y
    g.add("where", (mask, x, y) if g.rng.random() < 0.5 else (mask, y, x))


def cast(g: Grower) -> None:
    """Add a change of dtype. Floats are brought into the range of integers first."""
    x = g.pick()
    here = g.dtype_of(x)
    choices = [
        "float32",
        "float32",
        "float16",
        "float64",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "int64",
        "bool",
    ]
    choices += ["bfloat16"] if "bfloat16" in {g.dtype, here} else []
    there = g.rng.choice([c for c in choices if c != here])
    if here in FLOATS and there not in FLOATS and there != "bool":
        low = 0.0 if there.startswith("uint") else -100.0
        x = g.add("clip", (x,), {"low": low, "high": 100.0})
    g.add("cast", (x,), {"dtype": there})


def axes_of(g: Grower, rank: int) -> list[int]:
    """Choose some axes, at least one. Some are negative."""
    count = g.rng.choice([1, 1, 1, 2, rank])
    axes = sorted(g.rng.sample(range(rank), min(rank, count)))
    return [a - rank if g.rng.random() < 0.2 else a for a in axes]


def reduce(g: Grower) -> None:
    """Add a reduction over some axes."""
    x = g.pick(lambda v: len(g.shape(v)) > 0)
    dtype, rank = g.dtype_of(x), len(g.shape(x))
    if dtype in FLOATS:
        name = g.rng.choice(["sum", "sum", "mean", "mean", "max", "max", "min", "variance", "std", "prod"])
    elif dtype == "bool":
        x, name = g.add("cast", (x,), {"dtype": g.rng.choice(["int32", "float32", "int8"])}), "sum"
    else:
        name = g.rng.choice(["sum", "max", "min", "prod"])
    axis = None if g.rng.random() < 0.1 else axes_of(g, rank)
    keep = g.rng.random() < 0.6
    result = g.add(name, (x,), {"axis": axis, "keepdims": keep})
    if keep and g.rng.random() < 0.6:  # the typical pattern of stitching: the row meets its own reduction
        name = g.rng.choice(
            ["subtract", "divide", "multiply", "add"] if dtype in FLOATS else ["subtract", "maximum"]
        )
        g.add(name, (x, result) if g.rng.random() < 0.7 else (result, x))


def index_of_extreme(g: Grower) -> None:
    """argmax or argmin."""
    x = g.pick(lambda v: len(g.shape(v)) > 0 and g.dtype_of(v) != "bool")
    axis = None if g.rng.random() < 0.1 else g.rng.randrange(len(g.shape(x)))
    g.add(g.rng.choice(["argmax", "argmin"]), (x,), {"axis": axis, "keepdims": g.rng.random() < 0.4})


def scan(g: Grower) -> None:
    """cumsum."""
    x = g.pick(lambda v: len(g.shape(v)) > 0 and g.dtype_of(v) != "bool")
    g.add("cumsum", (x,), {"axis": g.rng.randrange(len(g.shape(x))), "exclusive": False})


TABLE: dict[str, tuple[float, Callable[[Grower], None]]] = {
    "unary": (16, unary),
    "binary": (22, binary),
    "select": (5, select),
    "cast": (4, cast),
    "reduce": (16, reduce),
    "index_of_extreme": (1.5, index_of_extreme),
    "scan": (0.7, scan),
}
