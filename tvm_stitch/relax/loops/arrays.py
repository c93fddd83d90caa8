# SPDX-License-Identifier: Apache-2.0
"""Views and sums of constants as NumPy arrays. Folding them as kernels would compile a kernel for each.

An LSTM of two layers and both directions has 85 such kernels, which took three quarters of its compile time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...compat import int_value
from ..rewriting.operators import operator_name

Lookup = Callable[[relax.Var], Any]
"""Returns the expression that a variable is bound to, or None."""


def array_of(value: Any, lookup: Lookup) -> np.ndarray | None:
    """Return the array of an expression of constants, or None if it is another one."""
    value = _bound(value, lookup)
    if isinstance(value, tvm.ir.GenericConst):
        array: np.ndarray = value.value.numpy()
        return array
    if isinstance(value, relax.TupleGetItem):
        parts = _parts(_bound(value.tuple_value, lookup), lookup)
        return parts[int(value.index)] if parts else None
    name = operator_name(value) if isinstance(value, relax.Call) else ""
    if name == "relax.concat":
        fields = value.args[0].fields if isinstance(value.args[0], relax.Tuple) else ()
        found = [array_of(field, lookup) for field in fields]
        known = [each for each in found if each is not None]
        return np.concatenate(known, int(value.attrs.axis)) if known and len(known) == len(found) else None
    if name == "relax.add":
        a, b = (array_of(arg, lookup) for arg in value.args)
        return None if a is None or b is None else a + b
    if name == "relax.zeros":
        sizes = [int_value(extent) for extent in value.ty.shape.values]
        known_sizes = [size for size in sizes if size is not None]
        return np.zeros(known_sizes, str(value.ty.dtype.dtype)) if len(known_sizes) == len(sizes) else None
    return None


def _bound(value: Any, lookup: Lookup) -> Any:
    while isinstance(value, relax.Var):
        found = lookup(value)
        if found is None:
            break
        value = found
    return value


def _parts(value: Any, lookup: Lookup) -> list[np.ndarray] | None:
    """Return the parts of a split constant."""
    if not isinstance(value, relax.Call) or operator_name(value) != "relax.split":
        return None
    whole, at = array_of(value.args[0], lookup), value.attrs.indices_or_sections
    if whole is None:
        return None
    count = int_value(at) if hasattr(at, "value") else None
    return np.split(whole, count if count is not None else [int(i) for i in at], int(value.attrs.axis))


class Arrays:
    """Moves of elements, of arrays by NumPy and of tensors by operators of Relax."""

    def __init__(self, emit: Callable[[relax.Expr], relax.Var]):
        self.emit = emit

    def reshape(self, x: Any, shape: Sequence[Any]) -> Any:
        """Return ``x`` in another shape."""
        return x.reshape(shape) if isinstance(x, np.ndarray) else self.emit(R.reshape(x, list(shape)))

    def permute(self, x: Any, axes: Sequence[int]) -> Any:
        """Return ``x`` with its axes in another order."""
        return x.transpose(axes) if isinstance(x, np.ndarray) else self.emit(R.permute_dims(x, list(axes)))

    def padded(self, x: Any, axis: int, more: int) -> Any:
        """Return ``x`` with zeros behind an axis."""
        if not more:
            return x
        widths = [
            (0, more if at == axis else 0) for at in range(x.ndim if isinstance(x, np.ndarray) else x.ty.ndim)
        ]
        if isinstance(x, np.ndarray):
            return np.pad(x, widths)
        return self.emit(R.nn.pad(x, [width for pair in widths for width in pair]))

    def tensor(self, x: Any) -> relax.Expr:
        """Return ``x`` as an expression."""
        return relax.const(np.ascontiguousarray(x), str(x.dtype)) if isinstance(x, np.ndarray) else x
