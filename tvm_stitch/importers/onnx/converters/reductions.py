# SPDX-License-Identifier: Apache-2.0
"""Reductions along axes, and positions of extremes.

A node without axes reduces all of them, unless ``noop_with_empty_axes`` is set. Then ONNX Runtime and ONNX's reference
apply only the element-wise part: ``ReduceL1`` returns absolute values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ....relax.rewriting.extents import require_extent
from .elementwise import in_float
from .node import ANY, Conversion, Node, Unsupported, as_tensor, positive, scalar

_Op = Callable[..., relax.Expr]


@dataclass(frozen=True)
class _Axes:
    """The reduced axes of a node, counted from the first dimension, and whether the result keeps them.

    ``axes`` is empty if the node reduces nothing. ``dims`` are the input's dimensions.
    """

    axes: tuple[int, ...]
    keep: bool
    dims: tuple[Any, ...]

    def reduce(self, op: _Op, x: relax.Expr, keep: bool | None = None) -> relax.Expr:
        """Return the reduction of a tensor by an operator. Without axes it is the tensor."""
        return op(x, list(self.axes), self.keep if keep is None else keep) if self.axes else x

    def drop(self, x: relax.Expr) -> relax.Expr:
        """Remove the reduced axes from a tensor that has them, unless the node keeps them."""
        return x if self.keep or not self.axes else relax.op.squeeze(x, list(self.axes))

    @property
    def nothing(self) -> bool:
        """Return whether a reduced dimension is known to be empty."""
        return any(isinstance(self.dims[a], int) and self.dims[a] == 0 for a in self.axes)


def _axes_of(node: Node) -> _Axes:
    named = (
        node.attributes.get("axes") if node.opset < 18 else (node.ints(1, "axes") if node.has(1) else None)
    )
    dims = tuple(node.shape(0))
    if named:
        axes = tuple(positive(int(axis), len(dims)) for axis in named)
    else:
        axes = () if node.attributes.get("noop_with_empty_axes", 0) else tuple(range(len(dims)))
    return _Axes(axes, bool(node.attributes["keepdims"]), dims)


def _mean(node: Node) -> relax.Expr:
    """Return means in the input's type. Those of integers are rounded towards zero. No integers have the mean 0."""
    axes, x, dtype = _axes_of(node), node.tensor(0), node.dtype(0)
    if "int" not in dtype:
        return axes.reduce(relax.op.mean, x)
    # TVM's mean of int32 is an int64 at run time, whatever its type says.
    count = math.prod(axes.dims[axis] for axis in axes.axes)
    if isinstance(count, int):
        divisor = scalar(max(count, 1), dtype)
    else:
        most = relax.op.maximum(as_tensor(node.bb, count), scalar(1, "int64"))
        divisor = node.emit(relax.op.astype(most, dtype))
    return relax.op.divide(node.emit(axes.reduce(relax.op.sum, x)), divisor)


def _bounds(dtype: str) -> tuple[Any, Any]:
    """Return the least and the greatest value of a type."""
    if dtype.startswith(("float", "bfloat")):
        return -np.inf, np.inf
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _extreme_along(x: relax.Expr, dtype: str, axes: _Axes, op: _Op) -> relax.Expr:
    """Return the extremes along axes. The extreme of nothing is the type's least or greatest value."""
    if not axes.nothing:
        return axes.reduce(op, x)
    left = [1 if i in axes.axes else d for i, d in enumerate(axes.dims) if axes.keep or i not in axes.axes]
    bound = _bounds(dtype)[0 if op is relax.op.max else 1]
    return relax.op.full(relax.ShapeExpr(left), scalar(bound, dtype), dtype)


def _extreme(op: _Op) -> Callable[[Node], relax.Expr]:
    """Return a converter of a maximum or minimum. Booleans are compared as bytes."""

    def convert(node: Node) -> relax.Expr:
        axes, x, dtype = _axes_of(node), node.tensor(0), node.dtype(0)
        if dtype != "bool":
            return _extreme_along(x, dtype, axes, op)
        if not axes.axes:
            return x
        extreme = axes.reduce(op, node.emit(relax.op.astype(x, "int8")))
        return relax.op.greater(node.emit(extreme), scalar(0, "int8"))

    return convert


def _absolute_sum(node: Node) -> relax.Expr:
    axes, x = _axes_of(node), node.tensor(0)
    return axes.reduce(relax.op.sum, x if node.dtype(0).startswith("uint") else relax.op.abs(x))


def _sum_of_squares(node: Node) -> relax.Expr:
    axes = _axes_of(node)
    return in_float(node, lambda x, _: axes.reduce(relax.op.sum, relax.op.multiply(x, x)))


def _through_floats(op: Callable[[relax.Expr, _Axes], relax.Expr]) -> Callable[[Node], relax.Expr]:
    """Return a converter of a reduction by roots or logarithms. Those of integers are rounded towards zero."""

    def convert(node: Node) -> relax.Expr:
        axes, dtype = _axes_of(node), node.dtype(0)
        if "int" not in dtype:
            return in_float(node, lambda x, _: op(x, axes))
        wide = node.emit(relax.op.astype(node.tensor(0), "float64"))
        return relax.op.astype(node.emit(op(wide, axes)), dtype)

    return convert


def _root_of_squares(x: relax.Expr, axes: _Axes) -> relax.Expr:
    return relax.op.sqrt(axes.reduce(relax.op.sum, relax.op.multiply(x, x)))


def _log_of_sum(x: relax.Expr, axes: _Axes) -> relax.Expr:
    return relax.op.log(axes.reduce(relax.op.sum, x))


def _log_sum_exp(node: Node) -> relax.Expr:
    """Return logarithms of sums of exponentials, which do not overflow. Infinite maxima are not subtracted.

    ONNX Runtime is the only definition for integers: it rounds each exponential of a difference to the maximum towards
    zero. So only maxima count, and the logarithm of their number is rounded too.
    """
    axes, dtype = _axes_of(node), node.dtype(0)
    if not axes.axes:
        return node.tensor(0)
    kept = _Axes(axes.axes, True, axes.dims)
    if "int" not in dtype:
        return in_float(node, functools.partial(_shifted, node, kept, axes.drop))
    x = node.tensor(0)
    top = node.emit(_extreme_along(x, dtype, kept, relax.op.max))
    maxima = kept.reduce(relax.op.sum, relax.op.astype(relax.op.equal(x, top), "float64"))
    count = relax.op.maximum(node.emit(maxima), scalar(1.0, "float64"))
    return axes.drop(node.emit(relax.op.add(top, relax.op.astype(relax.op.log(count), dtype))))


def _shifted(
    node: Node, kept: _Axes, drop: Callable[[relax.Expr], relax.Expr], x: relax.Expr, dtype: str
) -> relax.Expr:
    """Return log(sum(exp(x - m))) + m, where m is the maximum, or zero if that is infinite."""
    top = node.emit(_extreme_along(x, dtype, kept, relax.op.max))
    infinite = relax.op.equal(relax.op.abs(top), scalar(np.inf, dtype))
    shift = node.emit(relax.op.where(infinite, scalar(0.0, dtype), top))
    total = kept.reduce(relax.op.sum, relax.op.exp(relax.op.subtract(x, shift)))
    return drop(node.emit(relax.op.add(relax.op.log(total), shift)))


def _position(op: _Op) -> Callable[[Node], relax.Expr]:
    """Return a converter of the position of an extreme. The first NaN is the extreme, or the last one, as in NumPy."""

    def convert(node: Node) -> relax.Expr:
        x, dims = node.tensor(0), node.shape(0)
        axis, keep = positive(int(node.attributes["axis"]), len(dims)), bool(node.attributes["keepdims"])
        if isinstance(dims[axis], int) and dims[axis] == 0:
            raise Unsupported(f"no element of an empty dimension is an extreme: axis {axis} of {dims}")
        require_extent(node.bb, dims[axis], 1)
        if not node.attributes.get("select_last_index", 0):
            return op(x, axis, keep)
        position = node.emit(op(relax.op.flip(x, axis), axis, keep))
        extent = dims[axis]
        last = scalar(extent, "int64") if isinstance(extent, int) else as_tensor(node.bb, extent)
        return relax.op.subtract(relax.op.subtract(last, scalar(1, "int64")), position)

    return convert


_REDUCED = {"axes": ANY, "keepdims": ANY, "noop_with_empty_axes": ANY}
_POSITION = {"axis": ANY, "keepdims": ANY, "select_last_index": ANY}
CONVERSIONS = {
    ("", "ArgMax"): Conversion(_position(relax.op.argmax), _POSITION),
    ("", "ArgMin"): Conversion(_position(relax.op.argmin), _POSITION),
    ("", "ReduceL1"): Conversion(_absolute_sum, _REDUCED),
    ("", "ReduceL2"): Conversion(_through_floats(_root_of_squares), _REDUCED),
    ("", "ReduceLogSum"): Conversion(_through_floats(_log_of_sum), _REDUCED),
    ("", "ReduceLogSumExp"): Conversion(_log_sum_exp, _REDUCED),
    ("", "ReduceMax"): Conversion(_extreme(relax.op.max), _REDUCED),
    ("", "ReduceMean"): Conversion(_mean, _REDUCED),
    ("", "ReduceMin"): Conversion(_extreme(relax.op.min), _REDUCED),
    ("", "ReduceSumSquare"): Conversion(_sum_of_squares, _REDUCED),
}
