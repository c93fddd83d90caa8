# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of complex tensors on their parts, as PyTorch computes it.

A real operand has no imaginary part here. PyTorch gives it one of zero, so that an infinite number times a real one is
NaN in PyTorch, and infinite here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tvm.relax import op as R

from ....graph.extent import same_shape
from ..core import Converter, argument
from ..importing.unsupported import Unsupported
from ..operators.values import cast, constant, type_name
from .parts import Parts, operand, part_type, zeros_like

Pair = tuple[Any, Any]
"""Real and imaginary parts. The imaginary one of a real operand is None."""
Emit = Callable[[Any], Any]
"""Binds an expression to a variable, which it returns."""


def arithmetic_converters() -> dict[str, Converter]:
    """Return the converters of nodes with complex operands or results, by the names of PyTorch's operators."""
    return {
        **{f"add.{kind}": partial(_sum, R.add) for kind in ("Tensor", "Scalar")},
        **{f"sub.{kind}": partial(_sum, R.subtract) for kind in ("Tensor", "Scalar")},
        **{f"rsub.{kind}": _reversed_difference for kind in ("Tensor", "Scalar")},
        **{f"mul.{kind}": partial(_of_two, product) for kind in ("Tensor", "Scalar")},
        **{f"div.{kind}": partial(_of_two, quotient) for kind in ("Tensor", "Scalar")},
        **{f"eq.{kind}": _equal for kind in ("Tensor", "Scalar")},
        **{f"ne.{kind}": _not_equal for kind in ("Tensor", "Scalar")},
        **dict.fromkeys(("_conj.default", "conj_physical.default", "_conj_physical.default"), _conjugate),
        "_to_copy.default": _to_copy,
        "abs.default": _abs,
        "angle.default": _angle,
        "complex.default": _complex,
        "exp.default": _exp,
        "imag.default": _imaginary,
        "log.default": _log,
        "polar.default": _polar,
        "pow.Tensor_Scalar": _power,
        "real.default": _real,
        "reciprocal.default": _reciprocal,
        "sgn.default": _sgn,
        "view_as_complex.default": _view_as_complex,
        "view_as_real.default": _view_as_real,
    }


def product(left: Pair, right: Pair, emit: Emit) -> Pair:
    """Return the product of complex or real tensors."""

    def times(a: Any, b: Any) -> Any:
        return emit(R.multiply(a, b))

    (a, b), (c, d) = left, right
    if b is None and d is None:
        return times(a, c), None
    if b is None or d is None:
        return times(a, c), times(a, d) if b is None else times(b, c)
    return emit(R.subtract(times(a, c), times(b, d))), emit(R.add(times(a, d), times(b, c)))


def quotient(left: Pair, right: Pair, emit: Emit) -> Pair:
    """Return the quotient of complex or real tensors. Quotients by zero are infinite or NaN in each part."""
    (a, b), (c, d) = left, right
    if d is None:
        return emit(R.divide(a, c)), None if b is None else emit(R.divide(b, c))
    dtype = type_name(c)
    a, c, d = (_wider(x, emit) for x in (a, c, d))
    b = None if b is None else _wider(b, emit)
    divisor = emit(R.add(emit(R.multiply(c, c)), emit(R.multiply(d, d))))
    first, second = emit(R.multiply(a, c)), emit(R.negative(emit(R.multiply(a, d))))
    if b is not None:
        first = emit(R.add(first, emit(R.multiply(b, d))))
        second = emit(R.add(second, emit(R.multiply(b, c))))
    nothing = emit(R.equal(divisor, constant(0, type_name(divisor))))
    other = constant(0, type_name(a)) if b is None else b
    first, second = emit(R.where(nothing, a, first)), emit(R.where(nothing, other, second))
    return _narrow(emit(R.divide(first, divisor)), dtype, emit), _narrow(
        emit(R.divide(second, divisor)), dtype, emit
    )


def magnitude(real: Any, imaginary: Any, emit: Emit) -> Any:
    """Return the absolute value of complex numbers."""
    a, b = _wider(real, emit), _wider(imaginary, emit)
    total = emit(R.add(emit(R.multiply(a, a)), emit(R.multiply(b, b))))
    return _narrow(emit(R.sqrt(total)), type_name(real), emit)


_WIDER = {"float16": "float32", "float32": "float64"}
"""Types in which no square overflows or vanishes. The squares of complex128 beyond 1e154 do."""


def _wider(x: Any, emit: Emit) -> Any:
    dtype = type_name(x)
    return emit(R.astype(x, _WIDER[dtype])) if dtype in _WIDER else x


def _narrow(x: Any, dtype: str, emit: Emit) -> Any:
    return x if type_name(x) == dtype else emit(R.astype(x, dtype))


def _whole(pair: Pair, importer: Any) -> Parts:
    """Return both parts in one shape."""
    emit, (real, imaginary) = importer.block_builder.emit, pair
    if imaginary is None:
        return Parts(real, zeros_like(real, importer))
    if same_shape(list(real.ty.shape), list(imaginary.ty.shape)):
        return Parts(real, imaginary)
    total = emit(R.add(real, imaginary)).ty.shape
    return Parts(*(emit(R.broadcast_to(x, list(total))) for x in pair))


def _result(pair: Pair, node: Any, importer: Any) -> Any:
    return _whole(pair, importer) if node.meta["val"].dtype.is_complex else pair[0]


def _operands(node: Any, importer: Any) -> tuple[Pair, Pair]:
    dtype = part_type(node)
    left, right = (operand(arg, dtype, importer) for arg in node.args[:2])
    return left, right


def _of_two(function: Any, node: Any, importer: Any) -> Any:
    """(left, right)."""
    return _result(function(*_operands(node, importer), importer.block_builder.emit), node, importer)


def _combined(function: Any, left: Pair, right: Pair, node: Any, importer: Any) -> Any:
    """Return ``function(left, alpha * right)``, a sum or a difference."""
    emit = importer.block_builder.emit
    alpha = argument(node, 2, "alpha", 1)
    if alpha != 1:
        right = product(operand(alpha, part_type(node), importer), right, emit)
    real = emit(function(left[0], right[0]))
    if left[1] is None and right[1] is None:
        return _result((real, None), node, importer)
    if right[1] is None:
        return _result((real, left[1]), node, importer)
    if left[1] is None:
        other = right[1] if function is R.add else emit(R.negative(right[1]))
        return _result((real, other), node, importer)
    return _result((real, emit(function(left[1], right[1]))), node, importer)


def _sum(function: Any, node: Any, importer: Any) -> Any:
    """(left, right, alpha=1)."""
    return _combined(function, *_operands(node, importer), node, importer)


def _reversed_difference(node: Any, importer: Any) -> Any:
    """(subtrahend, minuend, alpha=1)."""
    right, left = _operands(node, importer)
    return _combined(R.subtract, left, right, node, importer)


def _equal(node: Any, importer: Any) -> Any:
    """(left, right)."""
    emit = importer.block_builder.emit
    dtype = _common_part_type(node)
    (a, b), (c, d) = (operand(arg, dtype, importer) for arg in node.args[:2])
    zero = constant(0, dtype)
    imaginary = emit(R.equal(zero if b is None else b, zero if d is None else d))
    return emit(R.logical_and(emit(R.equal(a, c)), imaginary))


def _not_equal(node: Any, importer: Any) -> Any:
    """(left, right)."""
    return importer.block_builder.emit(R.logical_not(_equal(node, importer)))


def _common_part_type(node: Any) -> str:
    import torch

    values = [arg.meta["val"] if hasattr(arg, "meta") else arg for arg in node.args[:2]]
    return str(torch.result_type(*values).to_real()).removeprefix("torch.")


def _unary(node: Any, importer: Any) -> Pair:
    """Return the parts of the first argument in the type of the result's parts."""
    return operand(node.args[0], part_type(node), importer)


def _conjugate(node: Any, importer: Any) -> Any:
    """(input)."""
    real, imaginary = _unary(node, importer)
    if imaginary is None:
        return real
    return Parts(real, importer.block_builder.emit(R.negative(imaginary)))


def _to_copy(node: Any, importer: Any) -> Any:
    """(input, dtype=None, ...): a real type drops imaginary parts."""
    value = importer.env[node.args[0]]
    if node.meta["val"].dtype.is_complex:
        return _whole(_unary(node, importer), importer)
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    if dtype == "bool":
        return importer.block_builder.emit(R.logical_or(*(cast(x, dtype, importer) for x in _both(value))))
    return cast(value.real, dtype, importer)


def _both(value: Parts) -> Pair:
    return value.real, value.imaginary


def _abs(node: Any, importer: Any) -> Any:
    """(input)."""
    return magnitude(*_both(importer.env[node.args[0]]), importer.block_builder.emit)


def _angle(node: Any, importer: Any) -> Any:
    """(input): of a real number it is 0 or pi, and NaN of NaN."""
    emit = importer.block_builder.emit
    real, imaginary = _unary(node, importer)
    if imaginary is not None:
        return emit(R.atan2(imaginary, real))
    dtype = type_name(real)
    below = emit(R.less(real, constant(0, dtype)))
    angle = emit(R.where(below, constant(math.pi, dtype), constant(0, dtype)))
    return emit(R.where(emit(R.isnan(real)), real, angle)) if "float" in dtype else angle


def _complex(node: Any, importer: Any) -> Any:
    """(real, imaginary)."""
    dtype = part_type(node)
    real, imaginary = (operand(arg, dtype, importer)[0] for arg in node.args[:2])
    return _whole((real, imaginary), importer)


def _polar(node: Any, importer: Any) -> Any:
    """(absolute value, angle)."""
    emit = importer.block_builder.emit
    size, angle = (importer.env[arg] for arg in node.args[:2])
    return Parts(emit(R.multiply(size, emit(R.cos(angle)))), emit(R.multiply(size, emit(R.sin(angle)))))


def _exp(node: Any, importer: Any) -> Any:
    """(input)."""
    emit = importer.block_builder.emit
    real, imaginary = _both(importer.env[node.args[0]])
    size = emit(R.exp(real))
    sine = emit(R.multiply(size, emit(R.sin(imaginary))))
    flat = emit(R.equal(imaginary, constant(0, type_name(real))))
    return Parts(emit(R.multiply(size, emit(R.cos(imaginary)))), emit(R.where(flat, imaginary, sine)))


def _log(node: Any, importer: Any) -> Any:
    """(input): the principal value."""
    emit = importer.block_builder.emit
    real, imaginary = _both(importer.env[node.args[0]])
    return Parts(emit(R.log(magnitude(real, imaginary, emit))), emit(R.atan2(imaginary, real)))


def _power(node: Any, importer: Any) -> Any:
    """(base, exponent), which is 1, 2 or 3."""
    exponent = node.args[1]
    if exponent not in (1, 2, 3):
        raise Unsupported.at(node, f"the exponent {exponent} of complex numbers is none of 1, 2 and 3")
    base = result = _unary(node, importer)
    for _ in range(int(exponent.real) - 1):
        result = product(result, base, importer.block_builder.emit)
    return _whole(result, importer)


def _real(node: Any, importer: Any) -> Any:
    """(input)."""
    return _unary(node, importer)[0]


def _imaginary(node: Any, importer: Any) -> Any:
    """(input)."""
    return _both(importer.env[node.args[0]])[1]


def _reciprocal(node: Any, importer: Any) -> Any:
    """(input)."""
    one = constant(1, part_type(node)), None
    return _whole(quotient(one, _unary(node, importer), importer.block_builder.emit), importer)


def _sgn(node: Any, importer: Any) -> Any:
    """(input): the number divided by its absolute value, and zero for zero."""
    emit = importer.block_builder.emit
    real, imaginary = _unary(node, importer)
    if imaginary is None:
        return emit(R.sign(real))
    size = magnitude(real, imaginary, emit)
    nothing = emit(R.equal(size, constant(0, type_name(size))))
    divisor = emit(R.where(nothing, constant(1, type_name(size)), size))
    return Parts(emit(R.divide(real, divisor)), emit(R.divide(imaginary, divisor)))


def _view_as_complex(node: Any, importer: Any) -> Any:
    """(input [..., 2])."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    axis = len(x.ty.shape) - 1

    def part(at: int) -> Any:
        return emit(R.squeeze(emit(R.strided_slice(x, [axis], [at], [at + 1])), [axis]))

    return Parts(part(0), part(1))


def _view_as_real(node: Any, importer: Any) -> Any:
    """(input) -> a tensor [..., 2]."""
    emit, parts = importer.block_builder.emit, _both(importer.env[node.args[0]])
    axis = len(parts[0].ty.shape)
    return emit(
        R.concat([emit(R.expand_dims(x, axis)) for x in parts], axis)
    )  # TVM stacks no symbolic shapes
