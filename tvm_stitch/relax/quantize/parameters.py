# SPDX-License-Identifier: Apache-2.0
"""Read ``R.quantize`` and ``R.dequantize`` for passes: scales and zero points, constant or not.

A quantized tensor ``q`` of scale ``s`` and zero point ``z`` represents ``(q - z) * s``.
"""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax

from ...graph.extent import is_number
from ..rewriting.operators import operator_name
from ..rewriting.views import shape_of

QUANTIZE, DEQUANTIZE = "relax.quantize", "relax.dequantize"

NARROW = ("int8", "uint8", "int16", "uint16")
"""The types of quantized tensors that are computed here. Biases may also be int32, and are only dequantized."""

FLOATS = ("float32", "float16", "bfloat16")


def is_constant(value: relax.Expr) -> bool:
    """Return whether a value is a constant tensor."""
    return isinstance(value, tvm.ir.GenericConst) and isinstance(value.ty, relax.TensorType)


def array_of(value: relax.Expr) -> np.ndarray:
    """Return the elements of a constant tensor."""
    return np.asarray(value.value.numpy())


def is_zero(value: relax.Expr) -> bool:
    """Return whether a value is a constant of zeros."""
    return is_constant(value) and not array_of(value).any()


def is_single(value: relax.Expr) -> bool:
    """Return whether a tensor has one element."""
    shape = shape_of(value)
    return shape is not None and all(is_number(extent, 1) for extent in shape)


def is_served(call: relax.Expr) -> bool:
    """Return whether a call quantizes floats to at most 16 bits, or dequantizes such integers or int32 to floats."""
    name = operator_name(call)
    if name not in (QUANTIZE, DEQUANTIZE) or any(getattr(arg, "ty", None) is None for arg in call.args):
        return False
    types = [getattr(value.ty, "dtype", None) for value in (call.args[0], call)]
    if not all(types) or any(shape_of(arg) is None for arg in call.args):
        return False
    source, result = map(str, types)
    if name == QUANTIZE:
        return source in FLOATS and result in NARROW
    return source in (*NARROW, "int32") and result in FLOATS


def is_per_tensor(call: relax.Expr) -> bool:
    """Return whether a call quantizes or dequantizes all elements with one scale and one zero point."""
    return is_served(call) and all(is_single(arg) for arg in call.args[1:])


def along_axis(values: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """Reshape scales or zero points to the rank of their tensor: to one element, or along an axis."""
    if values.size == 1:
        return values.reshape((1,) * rank)
    shape = [1] * rank
    shape[axis % rank] = values.size
    return values.reshape(shape)


def constant_parts(call: relax.Call) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return a dequantized constant's integers, scales and zero points, all of one rank, or None for another call."""
    if operator_name(call) != DEQUANTIZE or not is_served(call) or not all(map(is_constant, call.args)):
        return None
    array, scale, zero = map(array_of, call.args)
    axis = int(call.attrs.axis)
    if any(part.size != 1 and part.size != array.shape[axis % max(1, array.ndim)] for part in (scale, zero)):
        return None
    return array, along_axis(scale, array.ndim, axis), along_axis(zero, array.ndim, axis)


def dequantized(array: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Return the float32 values that integers represent, rounded once."""
    return (array.astype("int64") - zero.astype("int64")).astype("float32") * scale.astype("float32")


def undo_each_other(dequantize: relax.Expr, quantize: relax.Expr) -> bool:
    """Return whether quantizing a dequantized tensor gives its integers back, for one constant scale and zero point.

    ``(q - z) * s / s`` differs from ``q - z`` by two roundings. The difference is below one half if nothing
    overflows.
    """
    if not (is_per_tensor(dequantize) and is_per_tensor(quantize)):
        return False
    if str(dequantize.args[0].ty.dtype) != str(quantize.ty.dtype) or str(quantize.ty.dtype) not in NARROW:
        return False
    if str(dequantize.ty.dtype) != "float32":
        return False
    if not all(map(is_constant, (*dequantize.args[1:], *quantize.args[1:]))):
        return False
    (scale, zero), (again, zero_again) = (
        [array_of(arg).reshape(()) for arg in call.args[1:]] for call in (dequantize, quantize)
    )
    return bool(scale == again and int(zero) == int(zero_again) and is_plain(float(scale)))


def is_plain(scale: float) -> bool:
    """Return whether products with a scale neither overflow nor lose bits."""
    return math.isfinite(scale) and 2.0**-100 < scale < 2.0**100
