# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch that TVM's importer gets wrong or does not take, for its ``custom_convert_map``.

What the importer gets wrong cannot be mended in the module that it makes: SELU is the ELU that it gives with a factor
left out.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

from tvm import relax
from tvm.relax import op as R

from .compat import int_value
from .torch_backward import Converter, backward_converters, constant, number
from .torch_core import core_converters
from .torch_experts import expert_converters
from .torch_indexing import indexing_converters

__all__ = ["torch_converters"]


def torch_converters() -> dict[str, Converter]:
    """Converters for any exported program: ``from_exported_program(program, custom_convert_map=torch_converters())``.

    Those of :func:`~tvm_stitch.torch_backward.backward_converters` and of
    :func:`~tvm_stitch.torch_indexing.indexing_converters`, SELU's, reductions such as ``amax``
    (which ``logsumexp`` has), concatenations with a tensor of nothing (caches that begin so), and what gives floats of
    integers: quotients, powers, roots, exponentials, logarithms.
    """
    return {
        **backward_converters(),
        **core_converters(),
        **expert_converters(),
        **indexing_converters(),
        "cat.default": _concatenation,
        "div.Tensor_mode": _rounded_quotient,
        "elu.default": _elu,
        **{name: partial(_of_floats, *each) for name, each in _OF_FLOATS.items()},
    }


def _reciprocal(x: Any) -> Any:
    return R.divide(relax.const(1, x.ty.dtype.dtype), x)


_OF_FLOATS: dict[str, tuple[Any, Any]] = {
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
"""Operators of PyTorch that give floats of integers too, and those of two operands for numbers; TVM's importer divides
integers as C does, and fails at the others."""


def _of_floats(function: Any, of_numbers: Any, node: Any, importer: Any) -> Any:
    """An operator of operands in the type of its result, where that is of floats and one of them is of integers."""
    given = [importer.env[arg] if arg in importer.env else arg for arg in node.args]
    tensors = [each for each in given if isinstance(getattr(each, "ty", None), relax.TensorType)]
    of_integers = not all("float" in str(each.ty.dtype.dtype) for each in tensors)
    if not of_integers or not node.meta["val"].dtype.is_floating_point or _has_extents(given):
        own = (
            importer._unary_op(function) if of_numbers is None else importer._binary_op(function, of_numbers)
        )
        return own(node)
    return importer.block_builder.emit(function(*_in_type_of_result(given, node, importer)))


def _rounded_quotient(node: Any, importer: Any) -> Any:
    """(dividend, divisor, rounding_mode: None, "floor" or "trunc"), of floats and integers alike."""
    given = [importer.env[arg] if arg in importer.env else arg for arg in node.args]
    if _has_extents(given):
        return importer._div(node)
    emit, mode = importer.block_builder.emit, node.kwargs.get("rounding_mode")
    a, b = _in_type_of_result(given, node, importer)
    if mode is None or (mode == "trunc" and not node.meta["val"].dtype.is_floating_point):
        return emit(R.divide(a, b))  # of integers, as C does
    if mode == "floor":
        return emit(R.floor_divide(a, b))
    return emit(R.trunc(emit(R.divide(a, b))))


def _has_extents(given: list[Any]) -> bool:
    """Whether an operand is a symbolic extent: neither a number nor a tensor."""
    return not all(isinstance(each, (int, float)) or isinstance(each.ty, relax.TensorType) for each in given)


def _in_type_of_result(given: list[Any], node: Any, importer: Any) -> list[Any]:
    """Operands, tensors or numbers, in the type of what the operator gives."""
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")

    def operand(each: Any) -> Any:
        if isinstance(each, (int, float)):
            return relax.const(each, dtype)
        return (
            each if str(each.ty.dtype.dtype) == dtype else importer.block_builder.emit(R.astype(each, dtype))
        )

    return [operand(each) for each in given]


def _concatenation(node: Any, importer: Any) -> Any:
    """(tensors, axis) -> one tensor, in the type of all.

    Tensors of one axis without elements do not count, whatever axes the others have: transformers' caches begin so.
    """
    given = [importer.env[arg] for arg in node.args[0]]
    some = [each for each in given if [int_value(extent) for extent in each.ty.shape] != [0]] or given[:1]
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    parts = _in_type_of_result(some, node, importer)
    return parts[0] if len(parts) == 1 else importer.block_builder.emit(R.concat(parts, axis))


def _elu(node: Any, importer: Any) -> Any:
    """(input, alpha, scale, input scale) -> scale * (x where x > 0, else alpha * (exp(x * input scale) - 1)).

    TVM's importer leaves out both scales; SELU is an ELU with one.
    """
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    given = {name: number(node, at, node.kwargs.get(name, 1.0)) for at, name in _SCALES.items()}
    if given["scale"] == given["input_scale"] == 1.0:
        return importer._elu(node)
    inner = x if given["input_scale"] == 1.0 else emit(R.multiply(x, constant(given["input_scale"], x)))
    # Of what is above zero the exponential may be infinite: it is cut off before.
    below = emit(R.minimum(inner, constant(0.0, x)))
    below = emit(R.subtract(emit(R.exp(below)), constant(1.0, x)))
    below = emit(R.multiply(below, constant(given["alpha"] * given["scale"], x)))
    above = emit(R.multiply(emit(R.nn.relu(x)), constant(given["scale"], x)))
    return emit(R.add(above, below))


_SCALES = {1: "alpha", 2: "scale", 3: "input_scale"}
