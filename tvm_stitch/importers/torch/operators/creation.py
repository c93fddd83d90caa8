# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators that create tensors: filled ones, ranges, and all others that need no input.

Ranges of floats and other tensors without an input are computed by PyTorch when the program is imported.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tvm import relax, tirx
from tvm.relax import op as R

from ..core import Converter, argument
from ..importing.unsupported import Unsupported
from .values import array, cast, constant, known_shape, result_type, wrapped

MOST_ELEMENTS = 1 << 22
"""Elements of a tensor that is computed at import, at most."""


def creation_converters() -> dict[str, Converter]:
    """Return the converters of operators that create tensors, by the names of PyTorch's operators."""
    return {
        **{name: partial(_filled, value) for name, value in _FILLED.items()},
        **dict.fromkeys(("arange.default", "arange.start", "arange.start_step"), _range),
        **dict.fromkeys(_OF_NUMBERS, _computed),
        "fill.Scalar": partial(_full, 1),
        "full.default": partial(_full, 1),
        "full_like.default": partial(_full, 1),
        "new_full.default": partial(_full, 2),
        "scalar_tensor.default": partial(_full, 0),
    }


_FILLED = {
    "empty.memory_format": 0,
    "empty_like.default": 0,
    "empty_permuted.default": 0,
    "empty_strided.default": 0,
    "new_empty.default": 0,
    "new_empty_strided.default": 0,
    "new_ones.default": 1,
    "new_zeros.default": 0,
    "ones.default": 1,
    "ones_like.default": 1,
    "zeros.default": 0,
    "zeros_like.default": 0,
}
"""Operators whose result is filled with one number. An empty tensor is filled with zeros."""


_OF_NUMBERS = (
    "bartlett_window.default bartlett_window.periodic blackman_window.default blackman_window.periodic eye.default"
    " eye.m"
    " hamming_window.default hamming_window.periodic hamming_window.periodic_alpha hamming_window.periodic_alpha_beta"
    " hann_window.default hann_window.periodic kaiser_window.beta kaiser_window.default kaiser_window.periodic"
    " linspace.default logspace.default tril_indices.default triu_indices.default"
).split()
"""Operators of numbers alone, which PyTorch computes when the program is imported."""


def _shape(node: Any, importer: Any) -> list[Any]:
    """Return the shape of a result: the one that PyTorch has computed, or a tensor's or given one with symbols."""
    if (shape := known_shape(node)) is not None:
        return shape
    first = node.args[0]
    if isinstance(first, torch.fx.Node) and not str(node.target).removeprefix("aten.").startswith("new_"):
        return list(importer.env[first].ty.shape)
    given = first if isinstance(first, (list, tuple)) else node.args[1]
    return [importer.env.get(extent, extent) for extent in given]


def _filled(value: float, node: Any, importer: Any) -> Any:
    dtype = result_type(node)
    return importer.block_builder.emit(R.full(_shape(node, importer), constant(value, dtype), dtype))


def _full(at: int, node: Any, importer: Any) -> Any:
    """(shape or tensor, number), and for a scalar the number alone."""
    value, dtype = importer.env.get(node.args[at], node.args[at]), result_type(node)
    if isinstance(value, (int, float)):
        number = constant(value, dtype)
    elif isinstance(getattr(value, "ty", None), relax.TensorType):
        number = cast(value, dtype, importer)
    elif isinstance(value, complex):  # TVM's own importer holds no complex tensors
        raise Unsupported.at(node, "complex numbers need tvm_stitch.importers.torch.from_exported_program")
    else:
        number = importer._prim_value_to_scalar_tensor(value, dtype)
    if at == 0:
        return number if isinstance(number, relax.Var) else importer.block_builder.emit(number)
    return importer.block_builder.emit(R.full(_shape(node, importer), number, dtype))


def _computed(node: Any, importer: Any) -> Any:
    """Return the result of an operator of numbers, computed by PyTorch."""
    if any(isinstance(arg, torch.fx.Node) for arg in (*node.args, *node.kwargs.values())):
        raise Unsupported.at(node, "its sizes must be known when the program is exported")
    if node.meta["val"].numel() > MOST_ELEMENTS:
        raise Unsupported.at(node, f"its {node.meta['val'].numel()} elements are too many for a constant")
    kwargs = {name: value for name, value in node.kwargs.items() if name not in ("device", "pin_memory")}
    value = node.target(*node.args, **kwargs, device="cpu")
    if value.dtype == torch.bfloat16:
        return cast(array(value.float().numpy()), "bfloat16", importer)
    return array(value.contiguous().numpy())


def _range(node: Any, importer: Any) -> Any:
    """(end), (start, end) or (start, end, step)."""
    given = [importer.env.get(arg, arg) for arg in node.args]
    dtype, known = result_type(node), all(isinstance(each, (int, float)) for each in given)
    start, end = (0, given[0]) if len(given) == 1 else given[:2]
    step = argument(node, 2, "step", 1)
    if not known:
        return _symbolic_range(node, importer, start, end, step)
    if not dtype.startswith("int") or any(isinstance(each, float) for each in given) or step < 0:
        return _computed(node, importer)
    if len(range(start, end, step)) == 0 or wrapped(end, dtype) != end:
        return _computed(node, importer)
    return importer.block_builder.emit(R.arange(start, end, step, dtype=dtype))


def _symbolic_range(node: Any, importer: Any, start: Any, end: Any, step: Any) -> Any:
    emit, dtype = importer.block_builder.emit, result_type(node)
    if any(isinstance(getattr(each, "ty", None), relax.TensorType) for each in (start, end, step)):
        raise Unsupported.at(node, "a range between numbers of tensors is not imported")
    if isinstance(start, float) or isinstance(end, float) or not isinstance(step, int):
        raise Unsupported.at(node, "a range of floats up to a symbolic size is not imported")
    if step > 0:
        return cast(emit(R.arange(start, end, step, dtype="int64")), dtype, importer)
    count = -tirx.floordiv(end - start, -step)
    last = start + (count - 1) * step
    return cast(emit(R.flip(emit(R.arange(last, start + 1, -step, dtype="int64")), 0)), dtype, importer)
