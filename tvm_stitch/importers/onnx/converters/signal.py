# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms and windows. The transforms are those of ``relax/fourier``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ....relax.fourier.transform import half_spectrum, real_signal, spectrum
from .node import ANY, Conversion, Node, Unsupported, positive, shape_of


def _transform(
    node: Node, real: relax.Expr, imaginary: relax.Expr | None, onesided: bool, inverse: bool
) -> relax.Expr:
    """Return the transform along the last dimension, with real and imaginary parts in a new last one."""
    dtype, length = str(real.ty.dtype), shape_of(real)[-1]
    real, imaginary = _widened(node, real), None if imaginary is None else _widened(node, imaginary)
    sign, scale = (1, 1 / length) if inverse else (-1, 1.0)
    if onesided:
        first, second = half_spectrum(node.bb, real, sign, scale)
    else:
        first, second = spectrum(node.bb, real, imaginary, sign, scale)
    both = node.emit(relax.op.stack([first, second], axis=len(shape_of(first))))
    return both if str(both.ty.dtype) == dtype else node.emit(relax.op.astype(both, dtype))


def _widened(node: Node, x: relax.Expr) -> relax.Expr:
    """Return a tensor of a half type in float32."""
    return node.emit(relax.op.astype(x, "float32")) if str(x.ty.dtype).endswith("float16") else x


def _resized(node: Node, x: relax.Expr, length: int) -> relax.Expr:
    """Return the first ``length`` elements of the last dimension, with zeros behind the given ones."""
    dims = shape_of(x)
    if dims[-1] >= length:
        return (
            x if dims[-1] == length else node.emit(relax.op.strided_slice(x, [len(dims) - 1], [0], [length]))
        )
    rest = relax.op.zeros(relax.ShapeExpr([*dims[:-1], length - dims[-1]]), str(x.ty.dtype))
    return node.emit(relax.op.concat([x, rest], axis=len(dims) - 1))


def _parts(node: Node, x: relax.Expr) -> tuple[relax.Expr, relax.Expr | None]:
    """Return real and imaginary parts of a tensor whose last dimension has one or two elements."""
    rank = len(shape_of(x))
    kinds = shape_of(x)[-1]
    if kinds not in (1, 2):
        raise Unsupported(f"its last dimension has {kinds} elements; 1 is real, 2 is complex")
    parts = [
        node.emit(relax.op.squeeze(relax.op.strided_slice(x, [rank - 1], [i], [i + 1]), [rank - 1]))
        for i in range(kinds)
    ]
    return parts[0], parts[1] if kinds == 2 else None


def _dft(node: Node) -> relax.Expr:
    """Convert DFT: complex, of real signals with half of the result, and the inverse of both."""
    dims, given = node.static_shape(0), node.attributes
    rank = len(dims)
    inverse, onesided = bool(given["inverse"]), bool(given["onesided"])
    if node.opset < 20:
        axis = positive(given["axis"], rank)
    else:
        axis = positive(int(node.known(2, "axis").reshape(-1)[0]) if node.has(2) else -2, rank)
    if axis == rank - 1:
        raise Unsupported("it transforms the dimension of real and imaginary parts")
    real, imaginary = _parts(node, node.tensor(0))
    order = [i for i in range(rank - 1) if i != axis] + [axis]
    parts = [p if p is None else node.emit(relax.op.permute_dims(p, order)) for p in (real, imaginary)]
    length = int(node.known(1, "dft_length").reshape(-1)[0]) if node.has(1) else dims[axis]
    if inverse and onesided:
        length = length if node.has(1) else 2 * (dims[axis] - 1)
        return _back(_inverse_of_half(node, parts, length), order)
    parts = [p if p is None else _resized(node, p, length) for p in parts]
    assert parts[0] is not None
    return _back(_transform(node, parts[0], None if onesided else parts[1], onesided, inverse), order)


def _inverse_of_half(node: Node, parts: list[relax.Expr | None], length: int) -> relax.Expr:
    """Return the real signal of the first half of a spectrum, in a new last dimension of one element."""
    half = length // 2 + 1
    real, imaginary = (p if p is None else _resized(node, p, half) for p in parts)
    assert real is not None
    if imaginary is None:
        raise Unsupported("it inverts the half of a spectrum without imaginary parts")
    dtype = str(real.ty.dtype)
    wide = _widened(node, real), _widened(node, imaginary)
    y = node.emit(relax.op.expand_dims(real_signal(node.bb, wide, length, scale=1 / length), -1))
    return y if str(y.ty.dtype) == dtype else node.emit(relax.op.astype(y, dtype))


def _back(y: relax.Expr, order: list[int]) -> relax.Expr:
    """Return a transform with its dimensions in the order of the input."""
    return relax.op.permute_dims(y, [int(i) for i in np.argsort(order)] + [len(order)])


def _stft(node: Node) -> relax.Expr:
    """Convert STFT: frames of a signal, times a window, transformed."""
    dims = node.static_shape(0)
    step = int(node.known(1, "frame_step").reshape(-1)[0])
    window = node.optional(2)
    if node.has(3):
        length = int(node.known(3, "frame_length").reshape(-1)[0])
    elif window is not None:
        length = int(shape_of(window)[0])
    else:
        length = dims[1]
    onesided = bool(node.attributes["onesided"])
    signal = node.tensor(0)
    if len(dims) == 2:
        real, imaginary = signal, None
    else:
        real, imaginary = _parts(node, signal)
    frames = 1 + (dims[1] - length) // step
    spots = (np.arange(frames)[:, None] * step + np.arange(length)).astype("int64")
    cut: list[Any] = [real, imaginary]
    for i, part in enumerate(cut):
        if part is not None:
            part = node.emit(relax.op.take(part, relax.const(spots, "int64"), axis=1))
            cut[i] = part if window is None else node.emit(relax.op.multiply(part, window))
    if onesided and cut[1] is not None:
        raise Unsupported("it takes half of the spectrum of a complex signal; set onesided = 0")
    return _transform(node, cut[0], cut[1], onesided, False)


def _window(node: Node) -> relax.Expr:
    """Return a window of a constant size, computed at import."""
    size = int(node.known(0, "size").reshape(-1)[0])
    last = size if node.attributes["periodic"] else size - 1
    t = 2 * math.pi * np.arange(size) / last if last else np.zeros(size)
    kind = node.proto.op_type
    if kind == "HannWindow":
        values = 0.5 - 0.5 * np.cos(t)
    elif kind == "HammingWindow":
        values = 25 / 46 - 21 / 46 * np.cos(t)
    else:
        values = 0.42 - 0.5 * np.cos(t) + 0.08 * np.cos(2 * t)
    from onnx import helper

    return node.importer.constant(
        values.astype(helper.tensor_dtype_to_np_dtype(node.attributes["output_datatype"]))
    )


_WINDOW = {"periodic": ANY, "output_datatype": ANY}

CONVERSIONS = {
    ("", "DFT"): Conversion(_dft, {"axis": ANY, "inverse": ANY, "onesided": ANY}),
    ("", "STFT"): Conversion(_stft, {"onesided": ANY}),
    **{("", f"{kind}Window"): Conversion(_window, _WINDOW) for kind in ("Hann", "Hamming", "Blackman")},
}
