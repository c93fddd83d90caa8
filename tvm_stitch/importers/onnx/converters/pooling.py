# SPDX-License-Identifier: Apache-2.0
"""Pooling with every way to pad, positions of maxima, and pooling of regions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from ....graph.extent import as_expr
from ....relax.rewriting.extents import require_extent
from ...symbolic.folded_windows import folded_windows, window_counts
from .matrix.convolution import Window, padded, window_of
from .node import ANY, Conversion, Node, Unsupported, scalar, shape_of

_MAX_POOLS = (relax.op.nn.max_pool1d, relax.op.nn.max_pool2d, relax.op.nn.max_pool3d)
_AVERAGE_POOLS = (relax.op.nn.avg_pool1d, relax.op.nn.avg_pool2d, relax.op.nn.avg_pool3d)
"""Operators of Relax for one to three spatial dimensions."""


def _lowest(dtype: str) -> Any:
    if dtype.startswith(("float", "bfloat")):
        return -np.inf
    bits = tvm.DataType(dtype).bits
    return 0 if dtype.startswith("uint") else -(1 << (bits - 1))


def _is_symbolic(node: Node) -> bool:
    """Return whether a size is symbolic, and the operator of Relax computes the sizes of the output."""
    dims = node.shape(0)[2:]
    given = node.attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return given and len(dims) < 4 and not all(isinstance(d, int) for d in dims)


def _sized(node: Node) -> tuple[Window, list[int], list[int]]:
    """Return window, spatial sizes of the input, and those of the output. The last window starts inside the input."""
    dims = node.fixed(0, slice(2, None))
    window = window_of(node, dims, node.attributes["kernel_shape"])
    rank, sizes = window.rank, []
    for axis in range(rank):
        room = dims[axis] + window.pads[axis] + window.pads[rank + axis] - window.extent(axis)
        stride = window.strides[axis]
        if node.attributes.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
            size = -(-dims[axis] // stride)
        elif node.attributes.get("ceil_mode", 0):
            size = -(-room // stride) + 1
            if (size - 1) * stride >= dims[axis] + window.pads[axis]:
                size -= 1
        else:
            size = room // stride + 1
        sizes.append(size)
    return window, dims, sizes


def _windows(x: te.Tensor, window: Window, dims: list[int], out: list[int], fill: Any) -> Any:
    """Return the element of a window by output position and position in the kernel, ``fill`` outside."""

    def element(lead: Any, at: Any, taps: Any) -> tuple[Any, Any]:
        places = [
            at[i] * window.strides[i] + taps[i] * window.dilations[i] - window.pads[i]
            for i in range(window.rank)
        ]
        inside = tirx.all(*[tirx.all(p >= 0, p < d) for p, d in zip(places, dims)])
        return inside, tirx.if_then_else(inside, x(*lead, *places), fill)

    return element


def _max_pool(node: Node) -> Any:
    """Convert MaxPool, with the flat positions of maxima (of rows or columns) if they are used."""
    if _is_symbolic(node):
        return (_symbolic_max_pool(node),)
    window, dims, out = _sized(node)
    rank = window.rank
    if rank > len(_MAX_POOLS):
        raise Unsupported(f"it has {rank} spatial dimensions; 1 to 3 are taken")
    if len(node.outputs) > 1 and node.outputs[1]:
        return _max_with_positions(node, window, dims, out)
    pads = list(window.pads)
    for axis in range(rank):  # room that ceil_mode adds at the end
        reach = (out[axis] - 1) * window.strides[axis] + window.extent(axis)
        pads[rank + axis] = max(0, reach - dims[axis] - pads[axis])
    return (_cut(node, _maxima(node, window, pads), out),)


def _checked_window(node: Node) -> Window:
    """Return the window over symbolic sizes. A run checks that it fits into the input."""
    dims = node.shape(0)[2:]
    window = window_of(node, dims, node.attributes["kernel_shape"])
    for axis, size in enumerate(dims):
        least = window.extent(axis) - window.pads[axis] - window.pads[window.rank + axis]
        require_extent(node.bb, size, least)
    return window


def _whole(node: Node, window: Window) -> tuple[Window, dict[int, Any]]:
    """Return the window with room at the end for the last one of ``ceil_mode``, and the most windows by axis.

    A window that starts behind the input and its first pads does not count. There is none if the window is at least as
    long as its last pads and its stride.
    """
    if not node.attributes.get("ceil_mode", 0):
        return window, {}
    dims, rank = node.shape(0)[2:], window.rank
    pads, most = list(window.pads), {}
    for axis, stride in enumerate(window.strides):
        if pads[rank + axis] + stride > window.extent(axis):
            most[axis + 2] = (dims[axis] + pads[axis] + stride - 1) // stride
        pads[rank + axis] += stride - 1
    return replace(window, pads=tuple(pads)), most


def _at_most(node: Node, y: relax.Expr, most: dict[int, Any]) -> relax.Expr:
    """Return the first elements along axes of symbolic sizes, at most these."""
    ends = {axis: tirx.min(as_expr(shape_of(y)[axis]), as_expr(end)) for axis, end in most.items()}
    axes = list(ends)
    return node.emit(relax.op.strided_slice(y, axes, [0] * len(axes), list(ends.values()))) if axes else y


def _symbolic_max_pool(node: Node) -> relax.Expr:
    """Return maxima of windows over symbolic sizes."""
    if len(node.outputs) > 1 and node.outputs[1]:
        raise Unsupported("positions of maxima need fixed dimensions (shape_dict, or --shape)")
    window, most = _whole(node, _checked_window(node))
    return _at_most(node, _maxima(node, window, list(window.pads)), most)


def _maxima(node: Node, window: Window, pads: list[int]) -> relax.Expr:
    """Return maxima of windows. Relax pads floats only, so that others get the least number of their type before."""
    x, dtype, rank = node.tensor(0), node.dtype(0), window.rank
    if any(pads) and not dtype.startswith("float"):
        fill = scalar(_lowest(dtype), dtype)
        x, pads = node.emit(padded(x, [0, 0, *pads[:rank]], [0, 0, *pads[rank:]], fill)), [0] * (2 * rank)
    op = _MAX_POOLS[rank - 1]
    return node.emit(op(x, list(window.kernel), list(window.strides), pads, list(window.dilations)))


def _cut(node: Node, y: relax.Expr, out: list[int]) -> relax.Expr:
    """Return the first windows along each axis, if there are more than the node has."""
    more = [i for i, (a, b) in enumerate(zip(shape_of(y)[2:], out)) if a != b]
    if not more:
        return y
    axes = [i + 2 for i in more]
    return node.emit(relax.op.strided_slice(y, axes, [0] * len(axes), [out[i] for i in more]))


def _max_with_positions(node: Node, window: Window, dims: list[int], out: list[int]) -> Any:
    """Return maxima and flat positions. The first one of equal elements counts."""
    dtype, column = node.dtype(0), bool(node.attributes.get("storage_order", 0))
    batch, channels = node.shape(0)[:2]
    taps = math.prod(window.kernel)

    def places(at: Any, tap: Any) -> list[Any]:
        result = []
        for axis in range(window.rank):
            inner = math.prod(window.kernel[axis + 1 :])
            step = tirx.floormod(tirx.floordiv(tap, inner), window.kernel[axis])
            result.append(at[axis] * window.strides[axis] + step * window.dilations[axis] - window.pads[axis])
        return result

    def unfolded(x: te.Tensor) -> te.Tensor:
        low = tirx.const(_lowest(dtype), dtype)

        def element(*i: Any) -> Any:
            spots = places(i[2:-1], i[-1])
            inside = tirx.all(*[tirx.all(p >= 0, p < d) for p, d in zip(spots, dims)])
            return tirx.if_then_else(inside, x(*i[:2], *spots), low)

        return te.compute((batch, channels, *out, taps), element, name="windows")

    def positions(best: te.Tensor) -> te.Tensor:
        def element(*i: Any) -> Any:
            flat = _flat(places(i[2:], best(*i)), dims, column)
            return tirx.Cast("int64", flat + (i[0] * channels + i[1]) * math.prod(dims))

        return te.compute((batch, channels, *out), element, name="max_pool_positions")

    windows = node.emit(node.bb.call_te(unfolded, node.tensor(0)))
    best = node.emit(relax.op.argmax(windows, axis=-1))
    return node.emit(relax.op.max(windows, [-1])), node.emit(node.bb.call_te(positions, best))


def _flat(spots: list[Any], dims: list[int], column: bool) -> Any:
    order = list(range(len(dims)))[:: -1 if column else 1]
    flat: Any = 0
    for axis in order:
        flat = flat * dims[axis] + spots[axis]
    return flat


def _sums(node: Node, x: relax.Expr, window: Window, out: list[int]) -> relax.Expr:
    """Return sums over windows, with zeros outside."""
    dims = shape_of(x)[2:]

    def summed(t: te.Tensor) -> te.Tensor:
        element = _windows(t, window, dims, out, tvm.tirx.const(0, t.dtype))
        axes = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(window.kernel)]
        shape = (*t.shape[:2], *out)
        return te.compute(
            shape, lambda *i: te.sum(element(i[:2], i[2:], axes)[1], axis=axes), name="window_sum"
        )

    return node.emit(node.bb.call_te(summed, x))


def _counts(node: Node, window: Window, dims: list[int], out: list[int]) -> np.ndarray:
    """Return how many elements each window averages."""
    padded_too = bool(node.attributes.get("count_include_pad", 0))
    result = np.ones([1, 1, *out], "float64")
    for axis in range(window.rank):
        first, last = (
            (-window.pads[axis], dims[axis] + window.pads[window.rank + axis])
            if padded_too
            else (0, dims[axis])
        )
        line = np.zeros(out[axis])
        for i in range(out[axis]):
            start = i * window.strides[axis] - window.pads[axis]
            spots = start + np.arange(window.kernel[axis]) * window.dilations[axis]
            line[i] = max(1, int(((spots >= first) & (spots < last)).sum()))
        result = result * line.reshape([-1 if i == axis + 2 else 1 for i in range(window.rank + 2)])
    return result


def _means(node: Node, x: relax.Expr, window: Window) -> relax.Expr:
    """Return means of windows without dilation, of float32 or float64."""
    op, include = _AVERAGE_POOLS[window.rank - 1], bool(node.attributes.get("count_include_pad", 0))
    kernel, strides, pads = (list(each) for each in (window.kernel, window.strides, window.pads))
    return node.emit(op(x, kernel, strides, pads, count_include_pad=include))


def _symbolic_average_pool(node: Node) -> relax.Expr:
    """Return means of windows over symbolic sizes."""
    if node.attributes.get("ceil_mode", 0) and node.attributes.get("count_include_pad", 0):
        raise Unsupported("ceil_mode with count_include_pad needs fixed dimensions (shape_dict, or --shape)")
    window, most = _whole(node, _checked_window(node))
    dtype = node.dtype(0)
    if any(d != 1 for d in window.dilations) or not dtype.startswith(("float", "bfloat")):
        raise Unsupported("dilations, or integers, need fixed dimensions (shape_dict, or --shape)")
    x, wide = node.tensor(0), "float32" if dtype in ("float16", "bfloat16") else dtype
    x = x if wide == dtype else node.emit(relax.op.astype(x, wide))
    y = _at_most(node, _means(node, x, window), most)
    return y if wide == dtype else node.emit(relax.op.astype(y, dtype))


def _average_pool(node: Node) -> relax.Expr:
    if _is_symbolic(node):
        return _symbolic_average_pool(node)
    window, dims, out = _sized(node)
    x, dtype, rank = node.tensor(0), node.dtype(0), window.rank
    simple = not node.attributes.get("ceil_mode", 0) and rank < 4 and all(d == 1 for d in window.dilations)
    if simple and dtype in ("float32", "float64"):
        return _cut(node, _means(node, x, window), out)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    x = x if wide == dtype else node.emit(relax.op.astype(x, wide))
    counts = relax.const(_counts(node, window, dims, out).astype(wide), wide)
    y = node.emit(relax.op.divide(_sums(node, x, window, out), counts))
    return y if wide == dtype else relax.op.astype(y, dtype)


def _power_of(node: Node, x: relax.Expr, p: float, dtype: str) -> relax.Expr:
    size = node.emit(relax.op.abs(x))
    if p == 1:
        return size
    if p == 2:
        return node.emit(relax.op.multiply(size, size))
    return node.emit(relax.op.power(size, scalar(float(p), dtype)))


def _root_of(x: relax.Expr, p: float, dtype: str) -> relax.Expr:
    if p == 1:
        return x
    return relax.op.sqrt(x) if p == 2 else relax.op.power(x, scalar(1.0 / p, dtype))


def _lp_pool(node: Node) -> relax.Expr:
    window, _, out = _sized(node)
    dtype, p = node.dtype(0), node.attributes["p"]
    powers = _power_of(node, node.tensor(0), p, dtype)
    return _root_of(_sums(node, powers, window, out), p, dtype)


def _global_lp_pool(node: Node) -> relax.Expr:
    dtype, p = node.dtype(0), node.attributes["p"]
    axes = list(range(2, len(node.shape(0))))
    total = node.emit(relax.op.sum(_power_of(node, node.tensor(0), p, dtype), axes, keepdims=True))
    return _root_of(total, p, dtype)


def _max_unpool(node: Node) -> relax.Expr:
    """Put maxima back to their positions. Positions are those of the output without ``output_shape``."""
    x, dims, given = node.tensor(0), node.static_shape(0), node.attributes
    kernel = given["kernel_shape"]
    rank = len(kernel)
    strides, pads = given.get("strides") or [1] * rank, given.get("pads") or [0] * (2 * rank)
    sizes = dims[:2] + [
        (dims[2 + i] - 1) * strides[i] - pads[i] - pads[rank + i] + kernel[i] for i in range(rank)
    ]
    out = node.ints(2, "output_shape") if node.has(2) else sizes
    flat = node.emit(
        relax.op.full(relax.ShapeExpr([math.prod(sizes)]), scalar(0, node.dtype(0)), node.dtype(0))
    )
    indices = node.emit(relax.op.reshape(node.tensor(1), [-1]))
    values = node.emit(relax.op.reshape(x, [-1]))
    flat = node.emit(relax.op.scatter_elements(flat, indices, values, axis=0))
    y = node.emit(relax.op.reshape(flat, relax.ShapeExpr(sizes)))
    if out == sizes:
        return y
    if len(out) != len(sizes) or any(a < b for a, b in zip(out, sizes)):
        raise Unsupported(f"an output_shape {out} is smaller than {sizes}")
    return padded(y, [0] * len(out), [a - b for a, b in zip(out, sizes)], scalar(0, node.dtype(0)))


_POOL = dict.fromkeys(("ceil_mode", "dilations", "kernel_shape", "pads", "strides"), ANY) | {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
}


def _columns_to_image(node: Node) -> relax.Expr:
    """Add the elements of windows ``[N, C * taps, windows]`` up at their positions in an image."""
    x, given = node.tensor(0), node.attributes
    batch, rows, count = node.static_shape(0)
    image, kernel = node.ints(1, "image_shape"), node.ints(2, "block_shape")
    rank, taps = len(kernel), math.prod(kernel)
    window = Window(
        tuple(kernel),
        tuple(given.get("strides") or [1] * rank),
        tuple(given.get("dilations") or [1] * rank),
        tuple(given.get("pads") or [0] * (2 * rank)),
    )
    sizes = image, kernel, window.strides, window.dilations, window.pads
    windows = window_counts(*sizes)
    if rows % taps or count != math.prod(windows):
        raise Unsupported(
            f"{rows} rows and {count} windows do not fit {kernel} elements and {windows} windows"
        )
    return node.bb.call_te(lambda t: folded_windows(t, *sizes), x)


CONVERSIONS = {
    ("", "Col2Im"): Conversion(_columns_to_image, dict.fromkeys(("dilations", "pads", "strides"), ANY)),
    ("", "MaxPool"): Conversion(_max_pool, {**_POOL, "storage_order": ANY}),
    ("", "AveragePool"): Conversion(_average_pool, {**_POOL, "count_include_pad": ANY}),
    ("", "LpPool"): Conversion(_lp_pool, {**_POOL, "p": ANY}, since=2),
    ("", "GlobalLpPool"): Conversion(_global_lp_pool, {"p": ANY}, since=2),
    ("", "MaxUnpool"): Conversion(_max_unpool, dict.fromkeys(("kernel_shape", "pads", "strides"), ANY)),
}
