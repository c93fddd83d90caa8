# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators of one or two tensors, element by element.

TVM's importer computes logarithms and roots of integers in their own type, and compares and negates unsigned numbers
as if they had a sign. Half types are computed in float32 and rounded once, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import DataType, te, tirx
from tvm.relax import op as R

from ..core import Converter, argument
from ..importing.unsupported import Unsupported
from .values import HALVES, cast, constant, is_integer, operand, result_type, type_name, widened

Unary = Callable[[Any, Any], Any]
"""A function of a tensor of floats and of the importer."""


def elementwise_converters() -> dict[str, Converter]:
    """Return the converters of operators without axes, by the names of PyTorch's operators."""
    return {
        **{f"{name}.default": partial(_float_function, function) for name, function in _FLOATS.items()},
        **{f"{name}.default": partial(_rounded, function) for name, function in _ROUNDED.items()},
        **{f"logical_{name}.default": partial(_logical, function) for name, function in _LOGICAL.items()},
        "_to_copy.default": _to_copy,
        "convert_element_type.default": _to_copy,
        "abs.default": _abs,
        "bitwise_not.default": _bitwise_not,
        "fmod.Scalar": _fmod,
        "fmod.Tensor": _fmod,
        "gelu.default": _gelu,
        "hardtanh.default": _hardtanh,
        "isfinite.default": partial(_test, R.isfinite, True),
        "isinf.default": partial(_test, R.isinf, False),
        "isnan.default": partial(_test, R.isnan, False),
        "leaky_relu.default": _leaky_relu,
        "logical_not.default": _logical_not,
        "neg.default": _neg,
        "relu.default": _relu,
        "remainder.Scalar": _remainder,
        "remainder.Tensor": _remainder,
        "round.decimals": _round_decimals,
        "sign.default": _sign,
        "signbit.default": _signbit,
        "view.dtype": _view_of_bits,
    }


def _expm1(x: Any, importer: Any) -> Any:
    """exp(x) - 1, near zero by way of the hyperbolic tangent, which loses no digits there."""
    emit, dtype = importer.block_builder.emit, type_name(x)
    half = emit(R.tanh(emit(R.multiply(x, constant(0.5, dtype)))))
    near = emit(R.divide(emit(R.add(half, half)), emit(R.subtract(constant(1, dtype), half))))
    far = emit(R.subtract(emit(R.exp(x)), constant(1, dtype)))
    return emit(R.where(emit(R.less(emit(R.abs(x)), constant(0.5, dtype))), near, far))


def _log1p(x: Any, importer: Any) -> Any:
    """log(1 + x), corrected by the rounding of the sum."""
    emit, dtype = importer.block_builder.emit, type_name(x)
    one = constant(1, dtype)
    total = emit(R.add(x, one))
    added = emit(R.subtract(total, one))
    log = emit(R.log(total))
    corrected = emit(R.divide(emit(R.multiply(log, x)), added))
    unchanged = emit(R.equal(added, constant(0, dtype)))
    infinite = emit(R.isinf(x))
    return emit(R.where(unchanged, x, emit(R.where(infinite, log, corrected))))


def _scaled_log(scale: float, x: Any, importer: Any) -> Any:
    emit = importer.block_builder.emit
    return emit(R.divide(emit(R.log(x)), constant(scale, type_name(x))))


def _op(function: Any) -> Unary:
    return lambda x, importer: importer.block_builder.emit(function(x))


_FLOATS: dict[str, Unary] = {
    "acos": _op(R.acos),
    "acosh": _op(R.acosh),
    "asin": _op(R.asin),
    "asinh": _op(R.asinh),
    "atan": _op(R.atan),
    "atanh": _op(R.atanh),
    "cosh": _op(R.cosh),
    "expm1": _expm1,
    "log10": partial(_scaled_log, 2.302585092994046),
    "log1p": _log1p,
    "log2": partial(_scaled_log, 0.6931471805599453),
    "rsqrt": _op(R.rsqrt),
    "sinh": _op(R.sinh),
    "sqrt": _op(R.sqrt),
    "tan": _op(R.tan),
}
"""Functions that return floats for integers too."""

_ROUNDED = {"ceil": R.ceil, "floor": R.floor, "round": R.round, "trunc": R.trunc}
"""Functions that return integers as they are."""

_LOGICAL = {"and": R.logical_and, "or": R.logical_or, "xor": R.logical_xor}


def _float_function(function: Unary, node: Any, importer: Any) -> Any:
    """(input): a float for integers and booleans."""
    dtype = result_type(node)
    x = widened(cast(importer.env[node.args[0]], dtype, importer), importer)
    return cast(function(x, importer), dtype, importer)


def _rounded(function: Any, node: Any, importer: Any) -> Any:
    """(input)."""
    x = importer.env[node.args[0]]
    if is_integer(type_name(x)):
        return x
    return cast(importer.block_builder.emit(function(widened(x, importer))), type_name(x), importer)


def _round_decimals(node: Any, importer: Any) -> Any:
    """(input, decimals): multiples of a power of ten. Halves go to the even one."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    decimals, dtype = int(argument(node, 1, "decimals", 0)), type_name(x)
    if is_integer(dtype):
        return x
    wide = widened(x, importer)
    scale = constant(10.0 ** abs(decimals), type_name(wide))
    first, second = (R.multiply, R.divide) if decimals > 0 else (R.divide, R.multiply)
    whole = emit(R.round(wide if decimals == 0 else emit(first(wide, scale))))
    return cast(whole if decimals == 0 else emit(second(whole, scale)), dtype, importer)


def _to_copy(node: Any, importer: Any) -> Any:
    """(input, dtype=None, ...): the input in a type."""
    return cast(importer.env[node.args[0]], result_type(node), importer)


def _view_of_bits(node: Any, importer: Any) -> Any:
    """(input, dtype): the same bits as numbers of another type of the same size. Other sizes are refused."""
    x, after = importer.env[node.args[0]], result_type(node)
    before = type_name(x)
    if before == after:
        return x
    if "bool" in (before, after) or DataType(before).bits != DataType(after).bits:
        raise Unsupported.at(node, f"a view of the bits of {before} as {after} is not imported")
    if is_integer(before) and is_integer(after):
        return cast(x, after, importer)

    def viewed(given: te.Tensor) -> te.Tensor:
        return te.compute(given.shape, lambda *at: tirx.reinterpret(after, given(*at)), name="bits")

    return importer.block_builder.emit_te(viewed, x)


def _abs(node: Any, importer: Any) -> Any:
    """(input)."""
    x = importer.env[node.args[0]]
    return x if type_name(x).startswith(("uint", "bool")) else importer.block_builder.emit(R.abs(x))


def _neg(node: Any, importer: Any) -> Any:
    """(input): unsigned numbers wrap around."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    if type_name(x).startswith("uint"):
        return emit(R.subtract(constant(0, type_name(x)), x))
    return emit(R.negative(x))


def _sign(node: Any, importer: Any) -> Any:
    """(input)."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    if type_name(x) == "bool":
        return x
    if type_name(x).startswith("uint"):
        return emit(R.minimum(x, constant(1, type_name(x))))
    return cast(emit(R.sign(widened(x, importer))), type_name(x), importer)


def _signbit(node: Any, importer: Any) -> Any:
    """(input): whether the number is negative, or minus zero."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    dtype = type_name(x)
    if dtype.startswith(("uint", "bool")):
        return emit(R.full(list(x.ty.shape), constant(False, "bool"), "bool"))
    zero = constant(0, dtype)
    below = emit(R.less(x, zero))
    if is_integer(dtype):
        return below
    inverse = emit(R.less(emit(R.divide(constant(1, dtype), x)), zero))
    return emit(R.logical_or(below, emit(R.logical_and(emit(R.equal(x, zero)), inverse))))


def _bitwise_not(node: Any, importer: Any) -> Any:
    """(input)."""
    x = importer.env[node.args[0]]
    return importer.block_builder.emit((R.logical_not if type_name(x) == "bool" else R.bitwise_not)(x))


def _logical(function: Any, node: Any, importer: Any) -> Any:
    """(left, right): numbers other than zero are true."""
    left, right = (cast(importer.env[arg], "bool", importer) for arg in node.args)
    return importer.block_builder.emit(function(left, right))


def _logical_not(node: Any, importer: Any) -> Any:
    """(input)."""
    return importer.block_builder.emit(R.logical_not(cast(importer.env[node.args[0]], "bool", importer)))


def _test(function: Any, of_integers: bool, node: Any, importer: Any) -> Any:
    """(input) -> booleans, the same ones for all integers."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    if "float" not in type_name(x):
        return emit(R.full(list(x.ty.shape), constant(of_integers, "bool"), "bool"))
    return emit(function(widened(x, importer)))


def _relu(node: Any, importer: Any) -> Any:
    """(input)."""
    x = importer.env[node.args[0]]
    return x if type_name(x).startswith("uint") else importer.block_builder.emit(R.nn.relu(x))


def _gelu(node: Any, importer: Any) -> Any:
    """(input, approximate="none")."""
    approximate = argument(node, 1, "approximate", "none")
    return importer.block_builder.emit(
        (R.nn.gelu if approximate == "none" else R.nn.gelu_tanh)(importer.env[node.args[0]])
    )


def _hardtanh(node: Any, importer: Any) -> Any:
    """(input, least=-1, greatest=1)."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    least, greatest = argument(node, 1, "min_val", -1), argument(node, 2, "max_val", 1)
    if "float" in type_name(x):
        return emit(R.clip(x, least, greatest))
    bounds = [constant(each, type_name(x)) for each in (least, greatest)]
    return emit(R.minimum(emit(R.maximum(x, bounds[0])), bounds[1]))


def _leaky_relu(node: Any, importer: Any) -> Any:
    """(input, slope=0.01)."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    slope = float(argument(node, 1, "negative_slope", 0.01))
    if 0.0 <= slope <= 1.0 and type_name(x) not in HALVES:
        return emit(R.nn.leakyrelu(x, slope))
    wide = widened(x, importer)
    positive = emit(R.greater(wide, constant(0, type_name(wide))))
    below = emit(R.multiply(wide, constant(slope, type_name(wide))))
    return cast(emit(R.where(positive, wide, below)), type_name(x), importer)


def _both(node: Any, importer: Any) -> tuple[Any, Any, str]:
    """Return two operands in the type of the result, half types in float32, with that type."""
    dtype = result_type(node)
    given = (importer.env[arg] if arg in importer.env else arg for arg in node.args[:2])
    left, right = (widened(operand(each, dtype, importer), importer) for each in given)
    return left, right, dtype


def truncated_remainder(left: Any, right: Any, importer: Any) -> Any:
    """Return the remainder of a division that rounds towards zero."""
    return importer.block_builder.emit(R.mod(left, right))


def _fmod(node: Any, importer: Any) -> Any:
    """(dividend, divisor): the remainder has the dividend's sign."""
    left, right, dtype = _both(node, importer)
    return cast(truncated_remainder(left, right, importer), dtype, importer)


def _remainder(node: Any, importer: Any) -> Any:
    """(dividend, divisor): the remainder has the divisor's sign."""
    left, right, dtype = _both(node, importer)
    emit = importer.block_builder.emit
    if is_integer(dtype):
        return emit(R.floor_mod(left, right))
    rest = truncated_remainder(left, right, importer)
    zero = constant(0, type_name(rest))
    other_sign = emit(R.not_equal(emit(R.less(rest, zero)), emit(R.less(right, zero))))
    moved = emit(R.logical_and(emit(R.not_equal(rest, zero)), other_sign))
    return cast(emit(R.where(moved, emit(R.add(rest, right)), rest)), dtype, importer)
