# SPDX-License-Identifier: Apache-2.0
"""Arithmetic and comparisons of PyTorch in PyTorch's types, for TVM's importer.

The importer gives a number the type of the other operand, so that ``i * 2.5`` of integers becomes ``i * 2``. It
divides integers as C does, and ignores the ``alpha`` of sums and differences. It knows no shifts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.relax import op as R

from .core import Converter, argument, dtype_name
from .operators.values import HALVES, cast, constant, full, is_integer, result_type, type_name, wrapped

OF_TWO: dict[str, tuple[Any, Any]] = {
    "add": (R.add, operator.add),
    "bitwise_and": (R.bitwise_and, operator.and_),
    "bitwise_or": (R.bitwise_or, operator.or_),
    "bitwise_xor": (R.bitwise_xor, operator.xor),
    "eq": (R.equal, operator.eq),
    "floor_divide": (R.floor_divide, operator.floordiv),
    "ge": (R.greater_equal, operator.ge),
    "gt": (R.greater, operator.gt),
    "le": (R.less_equal, operator.le),
    "lt": (R.less, operator.lt),
    "maximum": (R.maximum, None),
    "minimum": (R.minimum, None),
    "mul": (R.multiply, operator.mul),
    "ne": (R.not_equal, operator.ne),
    "sub": (R.subtract, operator.sub),
}
"""Operators of two operands, in Relax and for two numbers."""

SHIFTS = {
    "bitwise_left_shift": R.left_shift,
    "bitwise_right_shift": R.right_shift,
    "__lshift__": R.left_shift,
    "__rshift__": R.right_shift,
}

OVERLOADS = ("Tensor", "Scalar", "Tensor_Scalar", "default")
"""Overloads of such an operator: with a tensor or a number as the second operand."""


def arithmetic_converters() -> dict[str, Converter]:
    """Return the converters of arithmetic, by the names of PyTorch's operators."""
    return {
        **{
            f"{name}.{overload}": partial(_of_two, *each)
            for name, each in OF_TWO.items()
            for overload in OVERLOADS
        },
        **{
            f"{name}.{overload}": partial(_shifted, function)
            for name, function in SHIFTS.items()
            for overload in (*OVERLOADS, "Scalar_Tensor")
        },
        **{name: partial(_of_floats, *each) for name, each in _OF_FLOATS.items()},
        **dict.fromkeys(("clamp.default", "clamp.Tensor"), _clamp),
        **{f"clamp_min.{kind}": _clamp_min for kind in ("default", "Tensor")},
        **{f"clamp_max.{kind}": _clamp_max for kind in ("default", "Tensor")},
        "div.Tensor_mode": _rounded_quotient,
        "pow.Tensor_Scalar": _power,
        "rsub.Scalar": _reversed_difference,
        "rsub.Tensor": _reversed_difference,
        "where.self": _where,
    }


def _given(node: Any, importer: Any) -> list[Any]:
    return [importer.env[arg] if arg in importer.env else arg for arg in node.args]


def is_tensor(operand: Any) -> bool:
    """Return whether an operand is a tensor, and not a number or a symbolic extent."""
    return isinstance(getattr(operand, "ty", None), relax.TensorType)


def in_type(given: list[Any], dtype: str, importer: Any) -> list[Any]:
    """Return operands in a type: tensors, numbers, and symbolic extents, which TVM's operators of two tensors also
    accept.

    TVM takes an extent for a tensor of one axis. Next to tensors of no axes, an extent becomes one of these.
    """
    emit = importer.block_builder.emit
    flat = not any(is_tensor(each) and len(each.ty.shape) for each in given)

    def operand(each: Any) -> Any:
        if isinstance(each, (int, float)):
            return constant(each, dtype)
        if not is_tensor(each):
            extent = tirx.Cast(dtype, each)
            if not flat:
                return extent
            row = emit(R.add(relax.const(np.zeros(1, dtype), dtype), extent))
            return emit(R.squeeze(row, [0]))
        if str(each.ty.dtype.dtype) == dtype:
            return each
        return cast(each, dtype, importer)

    return [operand(each) for each in given]


def _common_type(operands: list[Any]) -> str:
    """Return the type in which PyTorch computes with some operands: nodes of its graph, and numbers."""
    import torch

    def value(operand: Any) -> Any:
        operand_value = operand.meta["val"] if hasattr(operand, "meta") else operand
        return {torch.SymInt: 1, torch.SymFloat: 1.0}.get(type(operand_value), operand_value)

    first, *others = (value(operand) for operand in operands)
    kinds = [torch.result_type(first, other) for other in others]
    return dtype_name(reduce(torch.promote_types, kinds))


def _of_two(function: Any, of_numbers: Any, node: Any, importer: Any) -> Any:
    """(left, right, alpha=1): the right operand is multiplied by alpha, if the operator has one."""
    left, right, *_ = _given(node, importer)
    if not is_tensor(left) and not is_tensor(right):
        return importer._binary_op(function, of_numbers)(node)
    return _scaled(function, left, right, node, importer)


def _scaled(function: Any, left: Any, right: Any, node: Any, importer: Any) -> Any:
    """Return ``function(left, alpha * right)`` in the type that both have in PyTorch."""
    dtype = _common_type(list(node.args[:2]))
    alpha = argument(node, 2, "alpha", 1)
    if dtype in HALVES and any(map(_is_large, (left, right, alpha))):
        left, right = (cast(x, "float32", importer) if is_tensor(x) else x for x in (left, right))
        result = _combined(function, left, right, alpha, "float32", importer)
        return cast(result, dtype, importer) if type_name(result) == "float32" else result
    return _combined(function, left, right, alpha, dtype, importer)


def _is_large(value: Any) -> bool:
    """Return whether an operand is a number beyond the range of half types, in which PyTorch does not round it."""
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) > 65504


def _combined(function: Any, left: Any, right: Any, alpha: Any, dtype: str, importer: Any) -> Any:
    emit = importer.block_builder.emit
    left, right = in_type([left, right], dtype, importer)
    if alpha == 1:
        return emit(function(left, right))
    if not is_tensor(right):
        return emit(function(left, emit(R.multiply(constant(alpha, dtype), right))))
    return emit(function(left, emit(R.multiply(right, constant(alpha, dtype)))))


def _shifted(function: Any, node: Any, importer: Any) -> Any:
    """(bits, count). Counts of all bits or more, and negative ones, shift all bits out."""
    emit, dtype = importer.block_builder.emit, _common_type(list(node.args[:2]))
    given, count = in_type(_given(node, importer), dtype, importer)
    width = int("".join(each for each in dtype if each.isdigit()))
    keeps_sign = function is R.right_shift and not dtype.startswith("uint")
    outside = emit(
        R.logical_or(
            emit(R.less(count, constant(0, dtype))), emit(R.greater_equal(count, constant(width, dtype)))
        )
    )
    inside = emit(R.where(outside, constant(0, dtype), count))
    shifted = emit(function(given, inside))
    gone = emit(R.right_shift(given, constant(width - 1, dtype))) if keeps_sign else constant(0, dtype)
    return emit(R.where(outside, gone, shifted))


def _reversed_difference(node: Any, importer: Any) -> Any:
    """(subtrahend, minuend, alpha=1)."""
    right, left, *_ = _given(node, importer)
    return _scaled(R.subtract, left, right, node, importer)


def _power(node: Any, importer: Any) -> Any:
    """(base, number): the result is a float for integers and a number with a fraction."""
    base, exponent = _given(node, importer)[:2]
    if not is_tensor(base):
        return importer._pow(node)
    dtype = result_type(node)
    if is_integer(dtype) and isinstance(exponent, int):
        return _whole_power(cast(base, dtype, importer), exponent, importer)
    return importer.block_builder.emit(R.power(*in_type([base, exponent], dtype, importer)))


def _whole_power(base: Any, exponent: int, importer: Any) -> Any:
    """Return a power of integers by squaring. They wrap around, as in PyTorch, which refuses negative exponents."""
    emit, result = importer.block_builder.emit, None
    while exponent:
        if exponent & 1:
            result = base if result is None else emit(R.multiply(result, base))
        exponent >>= 1
        base = emit(R.multiply(base, base)) if exponent else base
    return full(list(base.ty.shape), 1, type_name(base), importer) if result is None else result


def _clamp(node: Any, importer: Any) -> Any:
    """(input, least=None, greatest=None), numbers or tensors."""
    return _clamped(node, importer, argument(node, 1, "min", None), argument(node, 2, "max", None))


def _clamp_min(node: Any, importer: Any) -> Any:
    """(input, least)."""
    return _clamped(node, importer, argument(node, 1, "min", None), None)


def _clamp_max(node: Any, importer: Any) -> Any:
    """(input, greatest), which TVM's importer reads from the third argument."""
    return _clamped(node, importer, None, argument(node, 1, "max", None))


def _clamped(node: Any, importer: Any, low: Any, high: Any) -> Any:
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    bounds = [bound for bound in (low, high) if bound is not None]
    given = [importer.env.get(bound, bound) for bound in bounds]
    dtype = _common_type([node.args[0], *bounds])
    numbers = all(isinstance(each, (int, float)) for each in given)
    if numbers and dtype == type_name(x) and (not is_integer(dtype) or all(_fits(g, dtype) for g in given)):
        least, greatest = (-math.inf if low is None else low), (math.inf if high is None else high)
        return emit(R.clip(x, least, greatest))
    x, *given = in_type([x, *given], dtype, importer)
    if low is not None:
        x = emit(R.maximum(x, given[0]))
    return emit(R.minimum(x, given[-1])) if high is not None else x


def _fits(value: float, dtype: str) -> bool:
    return not isinstance(value, float) and wrapped(value, dtype) == value


def _where(node: Any, importer: Any) -> Any:
    """(condition, value, other value)."""
    condition, *values = _given(node, importer)
    condition = cast(condition, "bool", importer)
    values = in_type(values, _common_type(list(node.args[1:])), importer)
    return importer.block_builder.emit(R.where(condition, *values))


def _reciprocal(x: Any) -> Any:
    return R.divide(relax.const(1, x.ty.dtype.dtype), x)


_OF_FLOATS: dict[str, tuple[Callable[..., Any], Any]] = {
    "atan2.default": (R.atan2, math.atan2),
    "cos.default": (R.cos, None),
    "div.Scalar": (R.divide, operator.truediv),
    "div.Tensor": (R.divide, operator.truediv),
    "erf.default": (R.erf, None),
    "exp.default": (R.exp, None),
    "log.default": (R.log, None),
    "pow.Scalar": (R.power, operator.pow),
    "pow.Tensor_Tensor": (R.power, operator.pow),
    "reciprocal.default": (_reciprocal, None),
    "sigmoid.default": (R.sigmoid, None),
    "sin.default": (R.sin, None),
    "tanh.default": (R.tanh, None),
}
"""Operators of PyTorch that return floats for integers too, and their versions for two numbers."""


def _of_floats(function: Any, of_numbers: Any, node: Any, importer: Any) -> Any:
    """Return an operator with operands in the type of its result, if that is a float type."""
    given = _given(node, importer)
    if not any(map(is_tensor, given)) or not node.meta["val"].dtype.is_floating_point:
        return importer._binary_op(function, of_numbers)(node)
    dtype = dtype_name(node.meta["val"].dtype)
    return importer.block_builder.emit(function(*in_type(given, dtype, importer)))


def _rounded_quotient(node: Any, importer: Any) -> Any:
    """(dividend, divisor, rounding_mode: None, "floor" or "trunc"), for floats and integers."""
    given = _given(node, importer)
    if not any(map(is_tensor, given)):
        return importer._div(node)
    emit, mode = importer.block_builder.emit, node.kwargs.get("rounding_mode")
    a, b = in_type(given, dtype_name(node.meta["val"].dtype), importer)
    if mode is None or (mode == "trunc" and not node.meta["val"].dtype.is_floating_point):
        return emit(R.divide(a, b))  # for integers, as C does
    if mode == "floor":
        return emit(R.floor_divide(a, b))
    return emit(R.trunc(emit(R.divide(a, b))))
