# SPDX-License-Identifier: Apache-2.0
"""PyTorch's Fourier transforms: along several axes, with each normalization, of complex and real numbers."""

from __future__ import annotations

from typing import Any

from tvm.relax import op as R

from ....compat import int_value
from ....relax.fourier.symbolic import symbolic_spectrum
from ....relax.fourier.transform import half_spectrum, real_signal, spectrum
from ..core import Converter, argument
from ..importing.unsupported import Unsupported
from ..operators.values import cast, widened
from .parts import Parts, part_type


def fourier_converters() -> dict[str, Converter]:
    """Return the converters of Fourier transforms, by the names of PyTorch's operators."""
    return {"_fft_c2c.default": _of_complex, "_fft_r2c.default": _of_real, "_fft_c2r.default": _to_real}


def _scale(lengths: list[Any], normalization: int, node: Any) -> float:
    """Return the factor of a normalization: none, by the root of the number of elements, or by that number."""
    if normalization == 0:
        return 1.0
    count = 1
    for length in lengths:
        if not isinstance(length, int):
            raise Unsupported.at(node, "a normalized transform of a symbolic length is not imported")
        count *= length
    return float(count) ** (-0.5 if normalization == 1 else -1.0)


def _axes(node: Any) -> tuple[list[int], list[Any]]:
    """Return the transformed axes, counted from the front, and their lengths in the input."""
    shape = list(node.args[0].meta["val"].shape)
    axes = [int(axis) % len(shape) for axis in node.args[1]]
    return axes, [shape[axis] for axis in axes]


def _moved(x: Any, axis: int, importer: Any) -> Any:
    """Return a tensor with an axis exchanged for the last one."""
    rank = len(x.ty.shape)
    if axis == rank - 1:
        return x
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return importer.block_builder.emit(R.permute_dims(x, order))


def _along(parts: Parts, axis: int, sign: int, scale: float, importer: Any) -> Parts:
    """Return the transform of complex numbers along one axis."""
    moved = parts.each(lambda x: _moved(x, axis, importer))
    known = int_value(moved.real.ty.shape[-1]) is not None
    transform = spectrum if known else symbolic_spectrum
    found = transform(importer.block_builder, moved.real, moved.imaginary, sign, scale)
    return Parts(*found).each(lambda x: _moved(x, axis, importer))


def _narrowed(parts: Parts, node: Any, importer: Any) -> Parts:
    dtype = part_type(node)
    return parts.each(lambda x: cast(x, dtype, importer))


def _of_complex(node: Any, importer: Any) -> Any:
    """(input, axes, normalization, forward)."""
    parts = importer.env[node.args[0]].each(lambda x: widened(x, importer))
    axes, lengths = _axes(node)
    scale = _scale(lengths, int(node.args[2]), node)
    for axis in reversed(axes):
        parts = _along(parts, axis, -1 if node.args[3] else 1, scale, importer)
        scale = 1.0
    return _narrowed(parts, node, importer)


def _of_real(node: Any, importer: Any) -> Any:
    """(input, axes, normalization, onesided): the last axis is transformed first."""
    emit = importer.block_builder.emit
    x = widened(importer.env[node.args[0]], importer)
    axes, lengths = _axes(node)
    scale, onesided = _scale(lengths, int(node.args[2]), node), bool(argument(node, 3, "onesided", True))
    *others, last = axes
    moved = _moved(x, last, importer)
    if int_value(moved.ty.shape[-1]) is None:
        found = symbolic_spectrum(importer.block_builder, moved, None, -1, scale)
        if onesided:
            count = moved.ty.shape[-1] // 2 + 1
            axis = len(moved.ty.shape) - 1
            found = tuple(emit(R.strided_slice(y, [axis], [0], [count], assume_inbound=True)) for y in found)
    elif onesided:
        found = half_spectrum(importer.block_builder, moved, -1, scale)
    else:
        found = spectrum(importer.block_builder, moved, None, -1, scale)
    parts = Parts(*found).each(lambda y: _moved(y, last, importer))
    for axis in reversed(others):
        parts = _along(parts, axis, -1, 1.0, importer)
    return _narrowed(parts, node, importer)


def _to_real(node: Any, importer: Any) -> Any:
    """(input, axes, normalization, length of the last axis): the last axis is transformed last."""
    parts = importer.env[node.args[0]].each(lambda x: widened(x, importer))
    axes, lengths = _axes(node)
    length = node.args[3]
    if not isinstance(length, int):
        raise Unsupported.at(node, "an inverse transform to a symbolic length is not imported")
    scale = _scale([*lengths[:-1], length], int(node.args[2]), node)
    *others, last = axes
    for axis in reversed(others):
        parts = _along(parts, axis, 1, 1.0, importer)
    moved = parts.each(lambda x: _moved(x, last, importer))
    count = length // 2 + 1
    rank = len(moved.real.ty.shape)
    if int_value(moved.real.ty.shape[-1]) != count:
        emit = importer.block_builder.emit
        moved = moved.each(lambda x: emit(R.strided_slice(x, [rank - 1], [0], [count])))
    real = real_signal(importer.block_builder, (moved.real, moved.imaginary), length, scale=scale)
    return cast(_moved(real, last, importer), part_type(node), importer)
