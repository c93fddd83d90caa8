# SPDX-License-Identifier: Apache-2.0
"""PyTorch's functions of the bits of floats: mantissas with exponents, and neighbouring numbers.

Integers are computed from the bits, so that devices which take denormal numbers for 0 give PyTorch's results too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from ..core import Converter
from ..importing.unsupported import Unsupported
from .values import cast, result_type, widened

_FORMS = {"float16": (16, 10), "float32": (32, 23), "float64": (64, 52)}
"""By type, its number of bits, and that of its mantissa."""


def bit_converters() -> dict[str, Converter]:
    """Return the converters of functions of bits, by the names of PyTorch's operators."""
    return {"frexp.Tensor": _frexp, "nextafter.default": _nextafter}


def _frexp(node: Any, importer: Any) -> Any:
    """(input) -> (mantissas between 0.5 and 1, exponents of 2). 0 has 0, and infinities are mantissas."""
    dtype = str(node.meta["val"][0].dtype).removeprefix("torch.")
    x = widened(importer.env[node.args[0]], importer)
    wide = str(x.ty.dtype.dtype)
    count, digits = _FORMS[wide]
    bits = f"int{count}"
    number = lambda value: tirx.const(value, bits)  # noqa: E731
    bias = (1 << (count - digits - 2)) - 2  # the exponent field of 0.5
    infinity = number((2 * bias + 3) << digits)

    def parts(word: Any) -> tuple[Any, Any, Any]:
        """Return the bits of a normal number of the same digits, its exponent, and whether x has a mantissa."""
        size = word & tirx.max_value(bits)
        denormal = size < number(1 << digits)
        scaled = tirx.reinterpret(bits, tirx.Cast(wide, size))
        normal = tirx.Select(denormal, scaled, size)
        exponent = (normal >> number(digits)) - number(bias)
        exponent = tirx.Select(denormal, exponent - number(bias + digits), exponent)
        return normal, exponent, tirx.And(size > number(0), size < infinity)

    def mantissa(given: Any) -> Any:
        word = tirx.reinterpret(bits, given)
        normal, _, has = parts(word)
        made = (normal & number((1 << digits) - 1)) | number(bias << digits) | (word & tirx.min_value(bits))
        return tirx.Select(has, tirx.reinterpret(wide, made), given)

    def exponent(given: Any) -> Any:
        _, power, has = parts(tirx.reinterpret(bits, given))
        return tirx.Select(has, tirx.Cast("int32", power), tirx.const(0, "int32"))

    emit_te = importer.block_builder.emit_te
    results = [emit_te(_elementwise(function), x) for function in (mantissa, exponent)]
    return relax.Tuple([cast(results[0], dtype, importer), results[1]])


def _elementwise(function: Callable[[Any], Any]) -> Callable[[te.Tensor], te.Tensor]:
    return lambda x: te.compute(x.shape, lambda *at: function(x(*at)), name="bits")


def _nextafter(node: Any, importer: Any) -> Any:
    """(input, other) -> the number next to the input in the direction of the other one."""
    dtype = result_type(node)
    if dtype not in _FORMS:
        raise Unsupported.at(node, f"neighbours of {dtype} are not imported")
    emit = importer.block_builder.emit
    left, right = (cast(importer.env[arg], dtype, importer) for arg in node.args[:2])
    both = list(emit(relax.op.add(left, right)).ty.shape)  # dropped later: nothing reads it
    left, right = (emit(relax.op.broadcast_to(x, both)) for x in (left, right))
    count, digits = _FORMS[dtype]
    bits = f"int{count}"
    zero, one = tirx.const(0, bits), tirx.const(1, bits)
    infinity = tirx.const(((1 << (count - digits - 1)) - 1) << digits, bits)

    def ordered(word: Any) -> tuple[Any, Any]:
        """Return an integer in the order of the numbers, and the bits of the magnitude."""
        size = word & tirx.max_value(bits)
        return tirx.Select(word < zero, zero - size, size), size

    def neighbour(a: Any, b: Any) -> Any:
        word, other = tirx.reinterpret(bits, a), tirx.reinterpret(bits, b)
        (key, size), (goal, reach) = ordered(word), ordered(other)
        moved = tirx.Select(goal > key, key + one, key - one)
        sign = tirx.Select(tirx.Or(moved < zero, tirx.And(moved.equal(zero), word < zero)), one, zero)
        magnitude = tirx.Select(moved < zero, zero - moved, moved)
        made = magnitude | (sign << tirx.const(count - 1, bits))
        made = tirx.Select(key.equal(goal), other, made)
        nan = tirx.Or(size > infinity, reach > infinity)
        return tirx.reinterpret(dtype, tirx.Select(nan, infinity + one, made))

    def neighbours(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: neighbour(x(*at), y(*at)), name="neighbours")

    return importer.block_builder.emit_te(neighbours, left, right)
