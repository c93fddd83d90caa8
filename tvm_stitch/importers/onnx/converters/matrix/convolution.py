# SPDX-License-Identifier: Apache-2.0
"""Convolutions: every way to pad, transposed ones, and those of integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ..node import ANY, Conversion, Node, Unsupported, dtype_of, scalar, shape_of

_LAYOUTS = {1: ("NCW", "OIW", "IOW"), 2: ("NCHW", "OIHW", "IOHW"), 3: ("NCDHW", "OIDHW", "IODHW")}


@dataclass(frozen=True)
class Window:
    """Kernel, strides, dilations and pads (all starts, then all ends) of a window over spatial axes."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Return the number of spatial axes."""
        return len(self.kernel)

    def extent(self, axis: int) -> int:
        """Return the elements that a kernel with its dilation covers along an axis."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def window_of(node: Node, dims: Sequence[Any], kernel: Sequence[int]) -> Window:
    """Return the window of a node, with pads by ``auto_pad``.

    Args:
        node: a convolution or a pooling.
        dims: spatial dimensions of the input.
        kernel: the kernel's spatial dimensions.
    """
    rank, given = len(kernel), node.attributes
    strides = tuple(given.get("strides") or [1] * rank)
    dilations = tuple(given.get("dilations") or [1] * rank)
    auto = given.get("auto_pad", "NOTSET")
    pads = tuple(given.get("pads") or [0] * (2 * rank))
    if auto == "VALID":
        pads = (0,) * (2 * rank)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        starts, ends = [], []
        for axis in range(rank):
            extent = (kernel[axis] - 1) * dilations[axis] + 1
            if not isinstance(dims[axis], int):
                if strides[axis] != 1:
                    raise Unsupported(
                        f"auto_pad {auto} with a stride needs fixed sizes; the input has {list(dims)}"
                    )
                total = extent - 1
            else:
                total = max(0, (-(-dims[axis] // strides[axis]) - 1) * strides[axis] + extent - dims[axis])
            small, large = total // 2, total - total // 2
            starts.append(small if auto == "SAME_UPPER" else large)
            ends.append(total - starts[-1])
        pads = (*starts, *ends)
    if len(pads) != 2 * rank or len(strides) != rank or len(dilations) != rank:
        raise Unsupported(
            f"pads {list(pads)}, strides {list(strides)} and dilations {list(dilations)} do not fit"
        )
    return Window(tuple(int(k) for k in kernel), strides, dilations, pads)


def convolved(
    node: Node, x: relax.Expr, w: relax.Expr, fill: relax.Expr | None = None, out: str | None = None
) -> relax.Expr:
    """Return the convolution of two tensors by a node's attributes.

    Args:
        node: the node.
        x: data ``[batch, channels, ...]``.
        w: weights ``[outputs, channels / groups, ...]``.
        fill: scalar that pads the data, or None for zero.
        out: type of the sums, or None for the data's.
    """
    kernel = shape_of(w)[2:]
    if not all(isinstance(k, int) for k in kernel):
        raise Unsupported(f"its kernel has symbolic sizes {kernel}")
    if node.attributes.get("kernel_shape") and list(node.attributes["kernel_shape"]) != kernel:
        raise Unsupported(f"kernel_shape {node.attributes['kernel_shape']} differs from the weights {kernel}")
    rank = len(kernel)
    if rank not in _LAYOUTS:
        raise Unsupported(f"it has {rank} spatial dimensions; 1 to 3 are taken")
    window = window_of(node, shape_of(x)[2:], kernel)
    pads = list(window.pads)
    if any(p < 0 for p in pads):
        raise Unsupported(f"it has negative pads {pads}; slice the input in their place")
    if fill is not None and any(pads):
        x = node.emit(padded(x, [0, 0, *pads[:rank]], [0, 0, *pads[rank:]], fill))
        pads = [0] * (2 * rank)
    op = (relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d)[rank - 1]
    data, weights, _ = _LAYOUTS[rank]
    return node.emit(
        op(
            x,
            w,
            strides=list(window.strides),
            padding=pads,
            dilation=list(window.dilations),
            groups=node.attributes.get("group", 1),
            data_layout=data,
            kernel_layout=weights,
            out_dtype=out,
        )
    )


def padded(x: relax.Expr, before: Sequence[int], behind: Sequence[int], fill: relax.Expr) -> relax.Expr:
    """Return a tensor between constant elements."""
    for axis in range(len(before)):
        parts = []
        for count in (before[axis], behind[axis]):
            dims = [*shape_of(x)[:axis], count, *shape_of(x)[axis + 1 :]]
            parts.append(relax.op.full(relax.ShapeExpr(dims), fill, dtype_of(x)) if count else None)
        tensors = [t for t in (parts[0], x, parts[1]) if t is not None]
        if len(tensors) > 1:
            x = relax.BlockBuilder.current().normalize(relax.op.concat(tensors, axis=axis))
    return x


def with_bias(node: Node, y: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """Return a convolution's result plus a bias for each channel."""
    if bias is None:
        return y
    dims = [1, -1] + [1] * (len(shape_of(y)) - 2)
    return node.emit(relax.op.add(y, node.emit(relax.op.reshape(bias, dims))))


def _conv(node: Node) -> relax.Expr:
    return with_bias(node, convolved(node, node.tensor(0), node.tensor(1)), node.optional(2))


def _conv_transpose(node: Node) -> relax.Expr:
    """Convert a ConvTranspose: ``output_shape`` and ``auto_pad`` become pads, and ``output_padding`` more room."""
    x, w, given = node.tensor(0), node.tensor(1), node.attributes
    dims, kernel = node.shape(0)[2:], node.shape(1)[2:]
    rank = len(kernel)
    if rank not in _LAYOUTS or not all(isinstance(k, int) for k in kernel):
        raise Unsupported(f"its kernel is {kernel}; 1 to 3 fixed spatial dimensions are taken")
    strides = list(given.get("strides") or [1] * rank)
    dilations = list(given.get("dilations") or [1] * rank)
    extra = list(given.get("output_padding") or [0] * rank)
    pads = list(given.get("pads") or [0] * (2 * rank))
    auto, shape = given.get("auto_pad", "NOTSET"), list(given.get("output_shape") or [])
    full = [(kernel[i] - 1) * dilations[i] + 1 for i in range(rank)]
    if auto == "VALID":
        pads = [0] * (2 * rank)
    if shape or auto.startswith("SAME"):
        for i in range(rank):
            if shape and not isinstance(dims[i], int):
                raise Unsupported(f"output_shape {shape} needs fixed sizes; the input has {dims}")
            if shape:
                total = strides[i] * (dims[i] - 1) + extra[i] + full[i] - shape[len(shape) - rank + i]
            else:
                total = full[i] + extra[i] - strides[i]
            if total < 0:  # more elements than the kernel reaches
                extra[i], total = extra[i] - total, 0
            small, large = total // 2, total - total // 2
            pads[i] = small if auto == "SAME_UPPER" else large
            pads[rank + i] = total - pads[i]
    return with_bias(node, _transposed(node, x, w, strides, dilations, pads, extra), node.optional(2))


def _transposed(
    node: Node,
    x: relax.Expr,
    w: relax.Expr,
    strides: list[int],
    dilations: list[int],
    pads: list[int],
    extra: list[int],
) -> relax.Expr:
    """Return a transposed convolution. TVM bounds ``output_padding`` by strides: more room is padded with zeros."""
    rank, group = len(strides), node.attributes.get("group", 1)
    op = (relax.op.nn.conv1d_transpose, relax.op.nn.conv2d_transpose, relax.op.nn.conv3d_transpose)[rank - 1]
    data, _, weights = _LAYOUTS[rank]
    room = [max(0, e - s + 1) for e, s in zip(extra, strides)]
    y = node.emit(
        op(
            x,
            w,
            strides=strides,
            padding=pads,
            output_padding=[e - r for e, r in zip(extra, room)],
            dilation=dilations,
            groups=group,
            data_layout=data,
            kernel_layout=weights,
        )
    )
    if not any(room):
        return y
    return node.emit(padded(y, [0] * (rank + 2), [0, 0, *room], scalar(0, dtype_of(y))))


def _conv_integer(node: Node) -> relax.Expr:
    """Convolve differences to the zero points in int32. Padding has the value of the zero point."""
    x = node.emit(relax.op.astype(node.tensor(0), "int32"))
    w = node.emit(relax.op.astype(node.tensor(1), "int32"))
    if node.has(2):
        x = node.emit(relax.op.subtract(x, relax.op.astype(node.tensor(2), "int32")))
    if node.has(3):
        w = node.emit(
            relax.op.subtract(w, of_outputs(node, relax.op.astype(node.tensor(3), "int32"), len(shape_of(w))))
        )
    return convolved(node, x, w, out="int32")


def of_outputs(node: Node, value: relax.Expr, rank: int) -> relax.Expr:
    """Return a scalar, or one value for each output channel, in the form of weights."""
    value = node.emit(value)
    return value if not shape_of(value) else node.emit(relax.op.reshape(value, [-1] + [1] * (rank - 1)))


def _rounded_range(dtype: str) -> tuple[float, float]:
    return (0.0, 255.0) if dtype == "uint8" else (-128.0, 127.0)


def requantized(node: Node, sums: relax.Expr, scale: relax.Expr, zero: relax.Expr, dtype: str) -> relax.Expr:
    """Return int32 sums times a scale, rounded to even, plus a zero point, within the bounds of bytes."""
    low, high = _rounded_range(dtype)
    y = relax.op.round(relax.op.multiply(relax.op.astype(sums, "float32"), scale))
    y = relax.op.add(y, relax.op.astype(zero, "float32"))
    y = relax.op.minimum(relax.op.maximum(y, scalar(low, "float32")), scalar(high, "float32"))
    return node.emit(relax.op.astype(node.emit(y), dtype))


def _qlinear_conv(node: Node) -> relax.Expr:
    """Convert QLinearConv: x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, bias."""
    x = node.emit(relax.op.astype(node.tensor(0), "int32"))
    x = node.emit(relax.op.subtract(x, relax.op.astype(one(node, 2), "int32")))
    w = node.emit(relax.op.astype(node.tensor(3), "int32"))
    rank = len(shape_of(w))
    w = node.emit(relax.op.subtract(w, of_outputs(node, relax.op.astype(node.tensor(5), "int32"), rank)))
    sums = with_bias(node, convolved(node, x, w, out="int32"), node.optional(8))
    factor = node.emit(relax.op.divide(relax.op.multiply(one(node, 1), node.tensor(4)), one(node, 6)))
    if shape_of(factor):
        factor = node.emit(relax.op.reshape(factor, [1, -1] + [1] * (rank - 2)))
    return requantized(node, sums, factor, one(node, 7), node.dtype(7))


def one(node: Node, position: int) -> relax.Expr:
    """Return an input of one element as a scalar."""
    value = node.tensor(position)
    if math.prod(d if isinstance(d, int) else 0 for d in shape_of(value)) != 1:
        raise Unsupported(f"input {position} has the shape {shape_of(value)}, and one element is needed")
    return value if not shape_of(value) else node.emit(relax.op.reshape(value, relax.ShapeExpr([])))


_CONV = dict.fromkeys(("dilations", "group", "kernel_shape", "pads", "strides"), ANY) | {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
}

CONVERSIONS = {
    ("", "Conv"): Conversion(_conv, _CONV),
    ("", "ConvTranspose"): Conversion(_conv_transpose, {**_CONV, "output_shape": ANY, "output_padding": ANY}),
    ("", "ConvInteger"): Conversion(_conv_integer, _CONV),
    ("", "QLinearConv"): Conversion(_qlinear_conv, _CONV),
}
