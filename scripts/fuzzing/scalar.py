# SPDX-License-Identifier: Apache-2.0
"""The oracle's element-wise operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .bounded import FLOATS, Array, Bounded, Rules, envelope, exact, overflow, rounded, unknown_like
from .data import numpy_dtype

_erf = np.vectorize(math.erf, otypes=["float64"])


def _sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x))) + np.where(np.isnan(x), x, 0)


FAST_DIVISOR = 2.0**126
"""CUDA's fast quotient by a larger number is 0."""

# name: (function, ulps or None for the rules' own). They are monotone on either side of zero, or have steps.
_MONOTONE: dict[str, tuple[Callable[[Array], Array], float | None]] = {
    "abs": (np.abs, 0),
    "negative": (np.negative, 0),
    "square": (np.square, 1),
    "ceil": (np.ceil, 0),
    "floor": (np.floor, 0),
    "trunc": (np.trunc, 0),
    "round": (np.rint, 0),
    "sign": (lambda x: np.where(np.isnan(x), 0, np.sign(x)), 0),  # as TVM defines it
    "sqrt": (np.sqrt, 2),
    "exp": (np.exp, None),
    "log": (np.log, None),
    "asin": (np.arcsin, None),
    "acos": (np.arccos, None),
    "atan": (np.arctan, None),
    "sinh": (np.sinh, None),
    "cosh": (np.cosh, None),
    "tanh": (np.tanh, None),
    "asinh": (np.arcsinh, None),
    "acosh": (np.arccosh, None),
    "atanh": (np.arctanh, None),
    "erf": (lambda x: np.where(np.isnan(x), x, _erf(np.where(np.isnan(x), 0, x))) if x.size else x, None),
    "sigmoid": (_sigmoid, None),
}
_KEEP_ZERO = ("abs", "negative")


def unary(name: str, x: Bounded, rules: Rules, attrs: dict[str, Any]) -> Bounded:
    """Compute an operator of one tensor."""
    if not x.is_float:
        return _integer_unary(name, x)
    if rules.fast and x.dtype != "float64":
        with np.errstate(all="ignore"):
            return _approximated(name, x, unary(name, x, replace(rules, fast=False), attrs))
    with np.errstate(all="ignore"):
        if name in ("isnan", "isinf", "isfinite"):
            return _class_of(name, x)
        if name in _MONOTONE:
            function, ulps = _MONOTONE[name]
            return _monotone(name, function, rules.ulps if ulps is None else ulps, x, rules)
        return _SPECIAL[name](x, rules, attrs)


def _approximated(name: str, x: Bounded, result: Bounded) -> Bounded:
    """Return the result of a function with the additional error of CUDA's fast mathematics.

    The guide gives bounds for the intrinsics. Those of sine, cosine and logarithm are absolute, within a range. Those
    of powers of e are relative, and grow with the argument. The approximate tanh has eleven bits.
    """
    if not result.is_float:
        return result
    size = np.abs(x.data)
    if name in ("sin", "cos", "log"):
        more = 2.0**-18 * (1 + size) if name != "log" else 2.0**-19
    elif name == "tan":
        angle = 2.0**-16 * (1 + size)  # a pole may be this near
        more = np.where(angle * (1 + np.abs(result.data)) < 0.5, angle * (1 + np.square(result.data)), np.inf)
    elif name in ("tanh", "gelu_tanh"):
        more = 2.0**-9 * (np.abs(result.data) + (size if name == "gelu_tanh" else 0))
    elif name in ("exp", "sigmoid", "silu", "selu", "sinh", "cosh", "gelu", "asinh", "acosh", "atanh"):
        more = 2.0**-19 * (1 + size) * np.maximum(np.abs(result.data), 2.0**-20)
    else:
        return result
    judged = np.isfinite(result.data)
    return Bounded(result.data, np.where(judged, result.error + more, result.error), result.dtype)


def _monotone(
    name: str, function: Callable[[Array], Array], ulps: float, x: Bounded, rules: Rules
) -> Bounded:
    error = np.where(x.unknown, 0, x.error)
    data = function(x.data)
    corners = [function(x.data - error), function(x.data + error)]
    crossing = (error > 0) & (np.abs(x.data) <= error)
    if name in ("cosh", "square", "abs", "asin", "acos", "atanh"):  # extreme, or alone defined, around 0
        corners.append(np.where(crossing, function(np.zeros(x.shape)), data))
    # A result near 0 of an argument far from it: asin, acos near 1 and log near 1 amplify the argument's rounding.
    bound = envelope(data, corners, ~x.unknown)
    if name == "sign" or (name == "round" and rules.ulps):
        bound = np.where((data != 0) | (name != "sign") | (x.error == 0), bound, np.inf)
    scale = np.abs(data) + (FLOATS[x.dtype].tiny if ulps else 0)
    result = rounded(data, bound, x.dtype, rules, ulps, np.where(np.isfinite(data), scale, np.abs(data)))
    if name in ("acos", "acosh", "atanh", "asin", "log"):
        result = Bounded(
            result.data, result.error + 4 * FLOATS[x.dtype].eps * (name in ("acos", "acosh")), x.dtype
        )
    if name == "sigmoid":  # 1 / (1 + exp(-x)) is 0 where exp(-x) is too large
        result = Bounded(result.data, result.error + FLOATS[x.dtype].tiny, x.dtype)
    keep = x.signed_zero and name in _KEEP_ZERO
    return Bounded(result.data, result.error, x.dtype, keep)


def _class_of(name: str, x: Bounded) -> Bounded:
    data = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}[name](x.data)
    return Bounded(data, unknown_like(data, x.unknown), "bool")


def _integer_unary(name: str, x: Bounded) -> Bounded:
    with np.errstate(all="ignore"):
        if name in ("isnan", "isinf", "isfinite"):
            return Bounded(np.full(x.shape, name == "isfinite"), np.zeros(x.shape), "bool")
        if name == "logical_not" or (name == "bitwise_not" and x.dtype == "bool"):
            return Bounded(~x.data, x.error, "bool")
        if name in ("ceil", "floor", "trunc", "round"):
            return x
        function: Any = {
            "abs": np.abs,
            "negative": np.negative,
            "bitwise_not": np.invert,
            "square": np.square,
            "sign": np.sign,
            "relu": lambda v: np.maximum(v, 0),
            "relu6": lambda v: np.clip(v, 0, 6),
        }[name]
        data = function(x.data).astype(x.dtype)
        magnitude = np.abs(x.data.astype("float64"))
        magnitude = magnitude**2 if name == "square" else magnitude
    least = x.data == np.iinfo(x.dtype).min if name == "abs" and x.dtype.startswith("int") else False
    undefined = x.unknown | overflow(x.dtype, magnitude) | least
    return Bounded(data, unknown_like(data, undefined), x.dtype)


def _lipschitz(
    function: Callable[[Array], Array], slope: float, scale: Callable[[Array], Array], ulps: float = 0
) -> Any:
    """Compute a smooth function whose derivative is at most ``slope``. Infinities are not judged."""

    def evaluate(x: Bounded, rules: Rules, _attrs: dict[str, Any]) -> Bounded:
        data = function(x.data)
        error = np.where(np.isinf(x.data), np.inf, slope * x.error)
        return rounded(data, error, x.dtype, rules, ulps or rules.ulps, scale(x.data))

    return evaluate


def _tan(x: Bounded, rules: Rules, _attrs: dict[str, Any]) -> Bounded:
    data = np.tan(x.data)
    slope = 1 + data**2
    error = x.error * slope * 2
    error = np.where(np.isinf(x.data) | ~(x.error * np.abs(data) < 0.1), np.inf, error)
    error = np.where(np.isnan(data) & np.isnan(x.data) & (x.error == 0), 0, error)
    return rounded(data, error + 2.0**-52 * slope, x.dtype, rules, rules.ulps)


def _rsqrt(x: Bounded, rules: Rules, _attrs: dict[str, Any]) -> Bounded:
    error = np.where(x.unknown, 0, x.error)
    data = 1 / np.sqrt(x.data)
    bound = envelope(data, [1 / np.sqrt(x.data - error), 1 / np.sqrt(x.data + error)], ~x.unknown)
    bound = np.where(x.data == 0, np.inf, bound)
    return rounded(data, bound, x.dtype, rules, 4)


def _relu(x: Bounded, rules: Rules, _attrs: dict[str, Any]) -> Bounded:
    return binary("maximum", x, like(x, 0.0), rules)


def _relu6(x: Bounded, rules: Rules, _attrs: dict[str, Any]) -> Bounded:
    return binary("minimum", binary("maximum", x, like(x, 0.0), rules), like(x, 6.0), rules)


def _leaky(x: Bounded, rules: Rules, attrs: dict[str, Any]) -> Bounded:
    slope = attrs.get("alpha", 0.01)
    data = np.where(x.data > 0, x.data, x.data * slope)
    return rounded(data, x.error * max(1.0, abs(slope)), x.dtype, rules, 2)


def _selu(x: Bounded, rules: Rules, _attrs: dict[str, Any]) -> Bounded:
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    data = np.where(
        np.isnan(x.data),
        x.data,
        scale * np.where(x.data > 0, x.data, alpha * (np.exp(np.minimum(x.data, 0)) - 1)),
    )
    error = np.where(np.isinf(x.data), np.inf, x.error * 2)
    return rounded(data, error, x.dtype, rules, rules.ulps + 4, np.maximum(np.abs(data), 2.0))


_SPECIAL: dict[str, Callable[[Bounded, Rules, dict[str, Any]], Bounded]] = {
    "sin": _lipschitz(np.sin, 1, lambda x: np.abs(np.sin(x)) + 2.0**-20 * (np.abs(x) > 100)),
    "cos": _lipschitz(np.cos, 1, lambda x: np.abs(np.cos(x)) + 2.0**-20 * (np.abs(x) > 100)),
    "tan": _tan,
    "rsqrt": _rsqrt,
    "relu": _relu,
    "relu6": _relu6,
    "leakyrelu": _leaky,
    "selu": _selu,
    "silu": _lipschitz(lambda x: x * _sigmoid(x), 1.2, np.abs),
    "gelu": _lipschitz(lambda x: 0.5 * x * (1 + _MONOTONE["erf"][0](x / math.sqrt(2))), 1.2, np.abs),
    "gelu_tanh": _lipschitz(
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), 1.2, np.abs
    ),
}


def like(x: Bounded, value: float) -> Bounded:
    """Return a scalar of the dtype of ``x``, rounded to it."""
    with np.errstate(over="ignore"):
        data = np.array(value).astype(numpy_dtype(x.dtype))
    return exact(data, x.dtype)


COMPARISONS: dict[str, Any] = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


def binary(name: str, a: Bounded, b: Bounded, rules: Rules) -> Bounded:
    """Compute an operator of two tensors of one dtype, broadcast against each other."""
    with np.errstate(all="ignore"):
        if name in COMPARISONS:
            return _compare(name, a, b, rules)
        if not a.is_float:
            return _integer_binary(name, a, b)
        return _float_binary(name, a, b, rules)


def _compare(name: str, a: Bounded, b: Bounded, rules: Rules) -> Bounded:
    data = np.asarray(COMPARISONS[name](a.data, b.data))
    unknown = a.unknown | b.unknown
    if a.is_float and rules.lenient:
        unknown = unknown | np.isnan(a.data) | np.isnan(b.data)
    if a is b:
        return Bounded(data, unknown_like(data, unknown), "bool")
    if a.is_float:
        gap = a.error + b.error
        close = (np.abs(a.data - b.data) <= gap) & (gap > 0)
        unknown = unknown | close
    return Bounded(data, unknown_like(data, unknown), "bool")


def _corners(function: Callable[[Array, Array], Array], a: Bounded, b: Bounded) -> tuple[Array, list[Array]]:
    ea, eb = np.where(a.unknown, 0, a.error), np.where(b.unknown, 0, b.error)
    data = np.asarray(function(a.data, b.data))
    if a is b:  # one tensor: both operands are off by the same
        return data, [function(a.data + s * ea, a.data + s * ea) for s in (-1, 1)]
    signs = [(-1, -1), (-1, 1), (1, -1), (1, 1)]
    return data, [function(a.data + s * ea, b.data + t * eb) for s, t in signs]


def _float_binary(name: str, a: Bounded, b: Bounded, rules: Rules) -> Bounded:
    known = ~(a.unknown | b.unknown)
    if a is b and rules.lenient:
        known = known & np.isfinite(a.data) & (a.data != 0)
    dtype = a.dtype
    if name in ("add", "subtract", "multiply"):
        function: Any = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[name]
        data, corners = _corners(function, a, b)
        bound = envelope(data, corners, known)
        if name == "multiply" and a is b:
            bound = np.where(np.abs(a.data) <= a.error, np.maximum(bound, np.square(a.data)), bound)
        result = rounded(data, bound, dtype, rules, 1)
        return Bounded(
            result.data, result.error, dtype, a.signed_zero and b.signed_zero and name == "multiply"
        )
    if name in ("maximum", "minimum"):
        function = np.maximum if name == "maximum" else np.minimum
        data, corners = _corners(function, a, b)
        bound = envelope(data, corners, known)
        nan = np.isnan(a.data) | np.isnan(b.data)
        if rules.nan_max == "any" and a is not b:
            bound = np.where(nan, np.inf, bound)
        return Bounded(data, bound, dtype)
    if name == "divide":
        data, corners = _corners(np.divide, a, b)
        bound = envelope(data, corners, known)
        zero = np.abs(b.data) <= b.error
        settled = (
            (b.data == 0)
            & (b.error == 0)
            & ((a.data == 0) & (a.error == 0) | np.isnan(a.data) | b.signed_zero)
        )
        if rules.fast:
            large = np.abs(b.data) + b.error >= FAST_DIVISOR
            settled, zero = settled & ~large, zero | large
        return rounded(data, np.where(zero & ~settled, np.inf, bound), dtype, rules, 3)
    if name == "power":
        data, corners = _corners(np.power, a, b)
        bound = envelope(data, corners, known)
        whole = (b.error == 0) & (b.data == np.rint(b.data)) & (np.abs(a.data) > a.error)
        fine = ((a.data - a.error > 0) | whole) & np.isfinite(a.data) & np.isfinite(b.data)
        ulps = 2 * rules.ulps
        if rules.fast:  # two to the power of y * log2(x)
            bound = bound + 2.0**-18 * (1 + np.abs(b.data * np.log2(np.abs(a.data)))) * np.abs(data)
        return rounded(data, np.where(fine, bound, np.inf), dtype, rules, ulps)
    if name in ("floor_divide", "floor_mod"):
        return _floor(name, a, b, rules)
    if name == "atan2":
        data, corners = _corners(np.arctan2, a, b)
        zero = (
            ((np.abs(a.data) <= a.error) & (b.data - b.error <= 0))
            | ~np.isfinite(a.data)
            | ~np.isfinite(b.data)
        )
        return rounded(data, np.where(zero, np.inf, envelope(data, corners, known)), dtype, rules, rules.ulps)
    raise KeyError(name)


def _floor(name: str, a: Bounded, b: Bounded, rules: Rules) -> Bounded:
    known = ~(a.unknown | b.unknown) & np.isfinite(a.data) & np.isfinite(b.data) & (np.abs(b.data) > b.error)
    if rules.fast:
        known = known & (np.abs(b.data) + b.error < FAST_DIVISOR)
    quotient, corners = _corners(np.divide, a, b)
    # A quotient smaller than every number is 0 or the least one. Its sign, which is lost, decides its floor.
    kind = FLOATS[a.dtype]
    least = kind.tiny if rules.flush else 2 * kind.sub
    slack = 4 * kind.eps * np.abs(quotient) + np.where((a.data == 0) & (a.error == 0), 0, least)
    floors = [np.floor(c + s) for c in (quotient, *corners) for s in (-slack, slack)]
    settled = known & (np.max(floors, axis=0) == np.min(floors, axis=0))
    whole = np.floor(quotient)
    if name == "floor_divide":
        return rounded(whole, np.where(settled, 0, np.inf), a.dtype, rules, 1)
    data = a.data - whole * b.data
    error = a.error + np.abs(whole) * b.error + 4 * FLOATS[a.dtype].eps * (np.abs(a.data) + np.abs(b.data))
    return rounded(data, np.where(settled, error, np.inf), a.dtype, rules, 1)


def _integer_binary(name: str, a: Bounded, b: Bounded) -> Bounded:
    function: Any = {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "floor_divide": np.floor_divide,
        "floor_mod": np.mod,
        "bitwise_and": np.bitwise_and,
        "bitwise_or": np.bitwise_or,
        "bitwise_xor": np.bitwise_xor,
        "logical_and": np.logical_and,
        "logical_or": np.logical_or,
        "logical_xor": np.logical_xor,
        "left_shift": np.left_shift,
        "right_shift": np.right_shift,
    }[name]
    data = np.asarray(function(a.data, b.data)).astype(a.dtype)
    unknown = a.unknown | b.unknown
    if a.dtype != "bool" and name in ("add", "subtract", "multiply", "left_shift"):
        wide = a.data.astype("float64"), b.data.astype("float64")
        plain: Any = {"left_shift": lambda x, y: x * 2.0**y}.get(name, function)
        unknown = unknown | overflow(a.dtype, np.abs(plain(*wide)))
    if name in ("floor_divide", "floor_mod"):
        unknown = unknown | (b.data == 0)
    return Bounded(data, unknown_like(data, unknown), a.dtype)


def where(condition: Bounded, a: Bounded, b: Bounded) -> Bounded:
    """Elements of ``a`` where the condition holds, else of ``b``."""
    data = np.where(condition.data, a.data, b.data)
    error = np.where(condition.unknown, np.inf, np.where(condition.data, a.error, b.error))
    if condition.unknown.any():  # both the same: no matter which
        same = (a.data == b.data) & (a.error == 0) & (b.error == 0) & condition.unknown
        error = np.where(same, 0.0, error)
    return Bounded(data, error, a.dtype, a.signed_zero and b.signed_zero)


def cast(x: Bounded, dtype: str, rules: Rules) -> Bounded:
    """Change the dtype: round to nearest even, truncate towards zero, wrap integers."""
    with np.errstate(all="ignore"):
        if dtype == x.dtype:
            return x
        if dtype == "bool":
            data = x.data != 0
            unknown = x.unknown | ((np.abs(x.data) <= x.error) & (x.error > 0)) if x.is_float else x.unknown
            return Bounded(data, unknown_like(data, unknown), dtype)
        if not x.is_float and dtype not in FLOATS:
            return Bounded(x.data.astype(dtype), x.error, dtype)
        if dtype not in FLOATS:
            return _to_integer(x, dtype)
        kind = FLOATS[dtype]
        wide = x.data.astype("float64")
        narrower = kind.eps > (FLOATS[x.dtype].eps if x.is_float else 0)
        representable = (wide == np.rint(wide)) & (np.abs(wide) <= 2 / kind.eps)
        scale = np.where(representable | (not narrower), 0.0, np.abs(wide))
        result = rounded(wide, x.error, dtype, rules, 1, scale)
        return Bounded(result.data, result.error, dtype, x.signed_zero)


def _to_integer(x: Bounded, dtype: str) -> Bounded:
    limits = np.iinfo(dtype)
    low, high = np.trunc(x.data - x.error), np.trunc(x.data + x.error)
    inside = (low >= limits.min) & (high <= min(limits.max, 2.0**62)) & np.isfinite(x.data)
    settled = inside & (low == high) & ~x.unknown
    data = np.where(settled, np.trunc(x.data), 0).astype(dtype)
    return Bounded(data, unknown_like(data, ~settled), dtype)
