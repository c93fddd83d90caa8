# SPDX-License-Identifier: Apache-2.0
"""Legalize ``R.quantize`` and ``R.dequantize`` to one element-wise function each, which stitches and joins matmuls.

Scales and zero points are operands of that function. TVM's legalization writes them into it as numbers. The kernels
of equal layers, whose scales differ, would then all differ. Here they are compiled once.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.topi import tag

from .parameters import DEQUANTIZE, QUANTIZE, array_of, is_constant, is_served, is_zero


def _quantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not is_served(call):
        return call.op.get_attr("FLegalize")(builder, call)
    x, scale, zero = call.args
    return builder.call_te(
        quantized,
        x,
        _as_float(builder, scale),
        None if is_zero(zero) else _as_float(builder, zero),
        int(call.attrs.axis),
        str(call.ty.dtype),
        primfunc_name_hint="quantize",
    )


def _dequantize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not is_served(call):
        return call.op.get_attr("FLegalize")(builder, call)
    x, scale, zero = call.args
    whole = str(x.ty.dtype) == "int32"  # float32 does not hold differences of int32
    return builder.call_te(
        dequantized,
        x,
        _as_float(builder, scale),
        None if is_zero(zero) else zero if whole else _as_float(builder, zero),
        int(call.attrs.axis),
        str(call.ty.dtype),
        primfunc_name_hint="dequantize",
    )


ELEMENTWISE_QUANTIZATION = {QUANTIZE: _quantize, DEQUANTIZE: _dequantize}
"""For ``LegalizeOps``."""


def quantized(x: te.Tensor, scale: te.Tensor, zero: te.Tensor, axis: int, dtype: str) -> Any:
    """Compute ``saturate(round(x / scale) + zero)`` in float32, rounded to nearest, ties to even."""

    def value(*i: Any) -> Any:
        rounded = te.round(x(*i).astype("float32") / _at(scale, i, axis))
        if zero is not None:
            rounded = rounded + _at(zero, i, axis)
        low, high = (tirx.const(float(end), "float32") for end in _range(dtype))
        return te.max(te.min(rounded, high), low).astype("int32").astype(dtype)

    return te.compute(x.shape, value, name="quantized", tag=tag.ELEMWISE)


def dequantized(x: te.Tensor, scale: te.Tensor, zero: te.Tensor, axis: int, dtype: str) -> Any:
    """Compute ``(x - zero) * scale`` in float32."""

    def value(*i: Any) -> Any:
        if zero is None:
            difference = x(*i).astype("float32")
        elif str(x.dtype) == "int32":
            difference = (x(*i) - _at(zero, i, axis)).astype("float32")
        else:
            difference = x(*i).astype("float32") - _at(zero, i, axis)
        return (difference * _at(scale, i, axis)).astype(dtype)

    return te.compute(x.shape, value, name="dequantized", tag=tag.ELEMWISE)


def _at(parameter: Any, indices: Any, axis: int) -> Any:
    """Return the scale or zero point of an element: the only one, or the one at its position along the axis."""
    if all(isinstance(extent, tirx.IntImm) and extent.value == 1 for extent in parameter.shape):
        return parameter(*[0] * len(parameter.shape))
    return parameter(indices[axis])


def _range(dtype: str) -> tuple[int, int]:
    return int(tirx.min_value(dtype).value), int(tirx.max_value(dtype).value)


def _as_float(builder: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """Return a scale, or a zero point of at most 16 bits, in float32."""
    if str(value.ty.dtype) == "float32":
        return value
    if is_constant(value):
        return relax.const(array_of(value).astype("float32"), "float32")
    return builder.emit(relax.op.astype(value, "float32"))
