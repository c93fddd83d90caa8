# SPDX-License-Identifier: Apache-2.0
"""The oracle: the exact result of a case, with a bound for each element. It uses only NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import network, reduction, scalar
from .bounded import Bounded, Rules, exact, flushed
from .case import Case, Inapplicable, Step, extent
from .data import constant

Result = Any
"""A Bounded, or a tuple of them for an operator of several results."""

UNARY = (
    *("abs", "negative", "square", "ceil", "floor", "trunc", "round", "sign", "sqrt", "rsqrt", "exp", "log"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf"),
    *("sigmoid", "isnan", "isinf", "isfinite", "logical_not", "bitwise_not"),
    *("relu", "relu6", "leakyrelu", "selu", "silu", "gelu", "gelu_tanh"),
)
BINARY = (
    *(
        "add",
        "subtract",
        "multiply",
        "divide",
        "power",
        "maximum",
        "minimum",
        "floor_divide",
        "floor_mod",
        "atan2",
    ),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "logical_xor"),
    *("left_shift", "right_shift", *scalar.COMPARISONS),
)
LIMIT = 4_000_000  # elements of any value


def evaluate(case: Case, run: int, arrays: Sequence[np.ndarray], rules: Rules) -> list[Result]:
    """Evaluate inputs and steps, in order.

    Raises:
        Inapplicable: if the case is invalid at the sizes of this run.
    """
    sizes = case.sizes[run]
    values: list[Result] = [flushed(exact(a, p.dtype), rules) for a, p in zip(arrays, case.inputs)]
    for step in case.steps:
        try:
            _check_broadcast(step, [values[i] for i in step.args])
            value = evaluate_step(step, [values[i] for i in step.args], sizes, rules)
        except (ValueError, IndexError) as error:  # shapes that do not fit
            raise Inapplicable(f"{step.op}: {error}") from error
        for part in value if isinstance(value, tuple) else (value,):
            if part.data.size > LIMIT:
                raise Inapplicable(f"{step.op} has {part.data.size} elements")
        values.append(value)
    return values


def _check_broadcast(step: Step, args: Sequence[Result]) -> None:
    """Refuse a broadcast that would not fit into memory, before it is computed."""
    shapes = [a.data.shape for a in args if not isinstance(a, tuple)]
    if step.op in BINARY or step.op in ("where", "matmul"):
        if step.op == "matmul":
            (*left, rows, _), (*right, _, columns) = ((1,) * (2 - len(s)) + s for s in shapes)
            shape = (*np.broadcast_shapes(tuple(left), tuple(right)), rows, columns)
        else:
            shape = np.broadcast_shapes(*shapes)
        if np.prod(shape, dtype="float64") > LIMIT:
            raise Inapplicable(f"{step.op} broadcasts to {shape}")


def flat_outputs(case: Case, values: Sequence[Result]) -> list[Bounded]:
    """Return the outputs of a case, with tuples flattened."""
    flat: list[Bounded] = []
    for index in case.outputs:
        value = values[index]
        flat.extend(value if isinstance(value, tuple) else [value])
    return flat


def evaluate_step(step: Step, args: list[Any], sizes: Mapping[str, int], rules: Rules) -> Result:
    """Compute one operator."""
    attrs = dict(step.attrs)
    if step.op in UNARY:
        return scalar.unary(step.op, args[0], rules, attrs)
    if step.op in BINARY:
        second = args[1] if len(args) > 1 else scalar.like(args[0], attrs["scalar"])
        if attrs.get("reverse"):
            return scalar.binary(step.op, second, args[0], rules)
        return scalar.binary(step.op, args[0], second, rules)
    return _OTHER[step.op](args, _Attrs(attrs, sizes), rules)


class _Attrs:
    """Attributes of a step, with evaluated extents."""

    def __init__(self, values: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        self.values, self.sizes = values, sizes

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def shape(self, name: str) -> list[int]:
        """Return a list of extents, as numbers."""
        return [extent(dim, self.sizes) for dim in self.values[name]]


def _constant(_args: list[Any], attrs: _Attrs, rules: Rules) -> Result:
    return flushed(exact(constant(attrs.values), attrs["dtype"]), rules)


def _full(_args: list[Any], attrs: _Attrs, _rules: Rules) -> Result:
    value = np.full(
        attrs.shape("shape"),
        attrs["value"],
        "float64" if attrs["dtype"].endswith(("16", "32", "64")) else None,
    )
    return exact(value, attrs["dtype"])


def _arange(_args: list[Any], attrs: _Attrs, _rules: Rules) -> Result:
    start, end, step = (extent(attrs[name], attrs.sizes) for name in ("start", "end", "step"))
    return exact(np.arange(start, end, step), attrs["dtype"])


def _reshape(args: list[Any], attrs: _Attrs, _rules: Rules) -> Result:
    shape = attrs.shape("shape")
    return args[0].moved(lambda a: a.reshape(shape))


def _broadcast(args: list[Any], attrs: _Attrs, _rules: Rules) -> Result:
    shape = attrs.shape("shape")
    return args[0].moved(lambda a: np.broadcast_to(a, shape))


def _slice(args: list[Any], attrs: _Attrs, _rules: Rules) -> Result:
    x = args[0]
    index: list[Any] = [slice(None)] * len(x.shape)
    for axis, begin, end, step in zip(attrs["axes"], attrs["begin"], attrs["end"], attrs["strides"]):
        first = extent(begin, attrs.sizes) if not (isinstance(begin, int) and begin < 0) else begin
        last = extent(end, attrs.sizes) if not (isinstance(end, int) and end < 0) else end
        if attrs.get("inbound") and not 0 <= first <= last <= x.shape[axis]:
            raise Inapplicable("a slice out of bounds")
        index[axis] = slice(first, last if step > 0 or last >= 0 else None, step)
    where = tuple(index)
    return x.moved(lambda a: a[where])


def _split(args: list[Any], attrs: _Attrs, _rules: Rules) -> Result:
    x, axis = args[0], attrs["axis"]
    sections = attrs["sections"]
    if isinstance(sections, int):
        if x.shape[axis] % sections:
            raise Inapplicable("a split into unequal parts")
        size = x.shape[axis] // sections
        edges = [size * i for i in range(sections + 1)]
    else:
        edges = [0, *[extent(s, attrs.sizes) for s in sections], x.shape[axis]]
        if edges != sorted(edges):
            raise Inapplicable("a split out of bounds")

    def part(low: int, high: int) -> Bounded:
        where = (slice(None),) * (axis % len(x.shape)) + (slice(low, high),)
        return x.moved(lambda a: a[where])

    return tuple(part(low, high) for low, high in zip(edges, edges[1:]))


def _squares(d: np.ndarray, factor: int) -> np.ndarray:
    """Return (..., C * factor * factor, H, W) as (..., C, H * factor, W * factor), pixel by pixel of a square."""
    *outer, channels, height, width = d.shape
    spread = np.empty((*outer, channels // factor**2, height * factor, width * factor), d.dtype)
    for row in range(factor):
        for column in range(factor):
            first = row * factor + column
            spread[..., row::factor, column::factor] = d[..., first :: factor**2, :, :]
    return spread


def _joined(args: list[Any], function: Callable[[list[np.ndarray]], np.ndarray]) -> Result:
    data = function([a.data for a in args])
    return Bounded(data, function([a.error for a in args]), args[0].dtype, all(a.signed_zero for a in args))


def _take(args: list[Any], attrs: _Attrs, _rules: Rules) -> Result:
    x, index, axis = args[0], args[1], attrs["axis"]
    return x.moved(lambda a: np.take(a, index.data, axis=axis))


def _gather_elements(args: list[Any], attrs: _Attrs, _rules: Rules) -> Result:
    return args[0].moved(lambda a: np.take_along_axis(a, args[1].data, attrs["axis"]))


def _gather_nd(args: list[Any], _attrs: _Attrs, _rules: Rules) -> Result:
    where = tuple(np.moveaxis(args[1].data, -1, 0))
    return args[0].moved(lambda a: a[where])


def _one_hot(args: list[Any], attrs: _Attrs, _rules: Rules) -> Result:
    index, axis = args[0], attrs["axis"]
    hit = np.expand_dims(index.data, axis) == np.arange(attrs["depth"]).reshape(
        [-1 if i == axis % (len(index.shape) + 1) else 1 for i in range(len(index.shape) + 1)]
    )
    on, off = attrs["values"]
    rows = exact(np.where(hit, on, off), attrs["dtype"])
    doubtful = np.expand_dims(np.broadcast_to(index.error, index.shape) > 0, axis)
    return Bounded(rows.data, np.where(doubtful, np.inf, rows.error), rows.dtype)


def _triangle(name: str) -> Callable[[list[Any], _Attrs, Rules], Result]:
    def apply(args: list[Any], attrs: _Attrs, _rules: Rules) -> Result:
        x = args[0]
        keep = getattr(np, name)(np.ones(x.shape[-2:], bool), attrs["k"])
        return Bounded(np.where(keep, x.data, 0).astype(x.data.dtype), np.where(keep, x.error, 0.0), x.dtype)

    return apply


def _matmul(args: list[Any], _attrs: _Attrs, rules: Rules) -> Result:
    a, b = args
    left, right = len(a.shape) == 1, len(b.shape) == 1
    a = a.moved(lambda v: v[None, :]) if left else a
    b = b.moved(lambda v: v[:, None]) if right else b
    if a.shape[-1] != b.shape[-2]:  # einsum would repeat an axis of one element
        raise ValueError(f"rows of {a.shape[-1]} elements and columns of {b.shape[-2]}")
    result = reduction.contraction(a, b, "...ij,...jk->...ik", a.shape[-1], rules)
    result = result.moved(lambda v: v[..., 0, :]) if left else result
    return result.moved(lambda v: v[..., 0]) if right else result


def _mask_fill(args: list[Any], attrs: _Attrs, _rules: Rules) -> Result:
    return scalar.where(args[1], scalar.like(args[0], attrs["value"]), args[0])


def _clip(args: list[Any], attrs: _Attrs, rules: Rules) -> Result:
    low, high = scalar.like(args[0], attrs["low"]), scalar.like(args[0], attrs["high"])
    return scalar.binary("minimum", scalar.binary("maximum", args[0], low, rules), high, rules)


def _std(args: list[Any], attrs: _Attrs, rules: Rules) -> Result:
    spread = reduction.variance(args[0], attrs["axis"], attrs["keepdims"], rules)
    return scalar.unary("sqrt", spread, rules, {})


def _reduced(function: Callable[..., Bounded], *first: Any) -> Callable[[list[Any], _Attrs, Rules], Result]:
    def apply(args: list[Any], attrs: _Attrs, rules: Rules) -> Result:
        return function(*first, args[0], attrs["axis"], attrs["keepdims"], rules)

    return apply


def _network(function: Callable[..., Bounded], *names: str) -> Callable[[list[Any], _Attrs, Rules], Result]:
    def apply(args: list[Any], attrs: _Attrs, rules: Rules) -> Result:
        return function(*args, *[attrs[name] for name in names], rules)

    return apply


_OTHER: dict[str, Callable[[list[Any], _Attrs, Rules], Result]] = {
    "const": _constant,
    "full": _full,
    "arange": _arange,
    "where": lambda v, a, r: scalar.where(*v),
    "masked_fill": _mask_fill,
    "clip": _clip,
    "cast": lambda v, a, r: scalar.cast(v[0], a["dtype"], r),
    "sum": _reduced(reduction.total),
    "mean": _reduced(reduction.mean),
    "variance": _reduced(reduction.variance),
    "std": _std,
    "prod": _reduced(reduction.product),
    "max": _reduced(reduction.extreme, "max"),
    "min": _reduced(reduction.extreme, "min"),
    "argmax": lambda v, a, r: reduction.arg_extreme("argmax", v[0], a["axis"], a["keepdims"]),
    "argmin": lambda v, a, r: reduction.arg_extreme("argmin", v[0], a["axis"], a["keepdims"]),
    "cumsum": lambda v, a, r: reduction.cumulative(v[0], a["axis"], a["exclusive"], r),
    "softmax": lambda v, a, r: network.softmax(v[0], a["axis"], False, r),
    "log_softmax": lambda v, a, r: network.softmax(v[0], a["axis"], True, r),
    "layer_norm": _network(network.layer_norm, "axes", "epsilon"),
    "rms_norm": _network(network.rms_norm, "axes", "epsilon"),
    "group_norm": _network(network.group_norm, "groups", "axes", "epsilon"),
    "instance_norm": _network(network.instance_norm, "axes", "epsilon"),
    "batch_norm": _network(network.batch_norm, "epsilon"),
    "reshape": _reshape,
    "flatten": lambda v, a, r: v[0].moved(lambda d: d.reshape(-1)),
    "expand_dims": lambda v, a, r: v[0].moved(lambda d: np.expand_dims(d, tuple(a["axes"]))),
    "squeeze": lambda v, a, r: v[0].moved(lambda d: np.squeeze(d, tuple(a["axes"]))),
    "broadcast_to": _broadcast,
    "permute_dims": lambda v, a, r: v[0].moved(lambda d: np.transpose(d, a["axes"])),
    "flip": lambda v, a, r: v[0].moved(lambda d: np.flip(d, a["axis"])),
    "pixel_shuffle": lambda v, a, r: v[0].moved(lambda d: _squares(d, a["factor"])),
    "strided_slice": _slice,
    "split": _split,
    "item": lambda v, a, r: v[0][a["index"]],
    "concat": lambda v, a, r: _joined(v, lambda parts: np.concatenate(parts, a["axis"])),
    "stack": lambda v, a, r: _joined(v, lambda parts: np.stack(parts, a["axis"])),
    "tile": lambda v, a, r: v[0].moved(lambda d: np.tile(d, a["repeats"])),
    "repeat": lambda v, a, r: v[0].moved(lambda d: np.repeat(d, a["repeats"], a["axis"])),
    "pad": lambda v, a, r: network.padded(v[0], a["widths"], a["value"]),
    "take": _take,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "one_hot": _one_hot,
    "tril": _triangle("tril"),
    "triu": _triangle("triu"),
    "matmul": _matmul,
    "conv2d": _network(network.conv2d, "strides", "padding", "groups"),
    "conv_transpose": _network(
        network.conv_transpose, "strides", "padding", "output_padding", "dilation", "groups"
    ),
    "attention": lambda v, a, r: network.attention(
        v[0], v[1], v[2], v[3] if len(v) > 3 else None, a["scale"], a["causal"], r
    ),
    "max_pool2d": lambda v, a, r: network.pool(
        "max_pool2d", v[0], a["window"], a["strides"], a["padding"], False, r
    ),
    "avg_pool2d": lambda v, a, r: network.pool(
        "avg_pool2d", v[0], a["window"], a["strides"], a["padding"], a["count_all"], r
    ),
}
