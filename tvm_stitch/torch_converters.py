# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch that TVM's importer gets wrong or does not take, for its ``custom_convert_map``.

What the importer gets wrong cannot be mended in the module that it makes: SELU is the ELU that it gives with a factor
left out.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op as R

from .torch_backward import Converter, backward_converters, constant, number
from .torch_core import core_converters
from .torch_indexing import indexing_converters

__all__ = ["torch_converters"]


def torch_converters() -> dict[str, Converter]:
    """Converters for any exported program: ``from_exported_program(program, custom_convert_map=torch_converters())``.

    Those of :func:`~tvm_stitch.torch_backward.backward_converters` and of
    :func:`~tvm_stitch.torch_indexing.indexing_converters`, SELU's, powers of integers, and reductions such as ``amax``,
    which ``logsumexp`` has.
    """
    return {
        **backward_converters(),
        **core_converters(),
        **indexing_converters(),
        "elu.default": _elu,
        "pow.Scalar": _power,
        "pow.Tensor_Tensor": _power,
    }


def _power(node: Any, importer: Any) -> Any:
    """(base, exponent), either of which may be a number or of integers where the result is of floats.

    TVM's operator takes floats of one type alone.
    """
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    emit = importer.block_builder.emit

    def operand(arg: Any) -> Any:
        if isinstance(arg, (int, float)):
            return relax.const(arg, dtype)
        given = importer.env[arg]
        return given if str(given.ty.dtype.dtype) == dtype else emit(R.astype(given, dtype))

    return emit(R.power(*map(operand, node.args)))


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
