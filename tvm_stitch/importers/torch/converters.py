# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch that TVM's importer gets wrong or does not take, for its ``custom_convert_map``.

What the importer gets wrong cannot be mended in the module that it makes: SELU is the ELU that it gives with a factor
left out.
"""

from __future__ import annotations

from typing import Any

from tvm.relax import op as R

from ...compat import int_value
from .arithmetic import arithmetic_converters, in_type
from .backward import Converter, backward_converters, constant, number
from .core import core_converters, dtype_name
from .experts import expert_converters
from .indexing import indexing_converters
from .pooling import pooling_converters
from .products import product_converters
from .resizing import resizing_converters

__all__ = ["torch_converters"]


def torch_converters() -> dict[str, Converter]:
    """Converters for any exported program: ``from_exported_program(program, custom_convert_map=torch_converters())``.

    They are those of :func:`~.arithmetic.arithmetic_converters` (operands of several types),
    :func:`~.backward.backward_converters`, :func:`~.indexing.indexing_converters`,
    :func:`~.pooling.pooling_converters` and :func:`~.resizing.resizing_converters`, SELU's, reductions such as
    ``amax`` (which ``logsumexp`` has), and concatenations with a tensor of nothing (caches that begin so).
    """
    return {
        **arithmetic_converters(),
        **backward_converters(),
        **core_converters(),
        **expert_converters(),
        **indexing_converters(),
        **pooling_converters(),
        **product_converters(),
        **resizing_converters(),
        "cat.default": _concatenation,
        "elu.default": _elu,
    }


def _concatenation(node: Any, importer: Any) -> Any:
    """(tensors, axis) -> one tensor, in the type of all.

    Tensors of one axis without elements do not count, whatever axes the others have: transformers' caches begin so.
    """
    given = [importer.env[arg] for arg in node.args[0]]
    some = [each for each in given if [int_value(extent) for extent in each.ty.shape] != [0]] or given[:1]
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    parts = in_type(some, dtype_name(node.meta["val"].dtype), importer)
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
