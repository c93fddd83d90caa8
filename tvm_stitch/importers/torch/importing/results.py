# SPDX-License-Identifier: Apache-2.0
"""Check a converter's result against the type and the shape that PyTorch has computed for the node.

A converter that gives another type or shape is wrong, so that its operator is refused.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ....compat import int_value
from ..complexes.parts import Parts
from ..core import dtype_name, results_read
from .unsupported import Unsupported

__all__ = ["checked"]


def checked(node: Any, result: Any) -> Any:
    """Return the result of a converter.

    Raises:
        Unsupported: if its type or its shape is not the one that PyTorch has computed.
    """
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            if each is not None and at in results_read(node):
                _check(node, _field(result, at), each)
    elif value is not None:
        _check(node, result, value)
    return result


def _field(result: Any, at: int) -> Any:
    if isinstance(result, Parts):
        return result.each(lambda part: _field(part, at))
    if isinstance(result, (list, tuple)):
        return result[at] if at < len(result) else None
    if isinstance(result, relax.Tuple):
        return result.fields[at] if at < len(result.fields) else None
    kind = getattr(result, "ty", None)
    if isinstance(kind, relax.TupleType):
        return relax.Var("field", kind.fields[at]) if at < len(kind.fields) else None
    return result if at == 0 else None  # some of TVM's converters return the first result alone


def _check(node: Any, result: Any, value: Any) -> None:
    import torch

    if not isinstance(value, torch.Tensor):
        return
    if value.dtype.is_complex:
        if not isinstance(result, Parts):
            raise Unsupported.at(node, "its converter returns no complex tensor")
        _check_tensor(node, result.real, value)
        _check_tensor(node, result.imaginary, value)
    else:
        _check_tensor(node, result, value)


def _check_tensor(node: Any, result: Any, value: Any) -> None:
    kind = getattr(result, "ty", None)
    if not isinstance(kind, relax.TensorType):
        raise Unsupported.at(node, "its converter returns no tensor")
    wanted = dtype_name(value.dtype.to_real())
    given = str(kind.dtype.dtype)
    if given != wanted:
        raise Unsupported.at(node, f"its converter returns {given} instead of {wanted}")
    if kind.shape is None:
        return
    shape = [int_value(extent) for extent in kind.shape]
    wanted_shape = [extent if isinstance(extent, int) else None for extent in value.shape]
    if len(shape) != len(wanted_shape) or any(
        a != b for a, b in zip(shape, wanted_shape) if None not in (a, b)
    ):
        raise Unsupported.at(
            node, f"its converter returns the shape {_text(kind.shape)} instead of {_text(value.shape)}"
        )


def _text(shape: Any) -> str:
    return (
        f"[{', '.join(str(extent if int_value(extent) is None else int_value(extent)) for extent in shape)}]"
    )
