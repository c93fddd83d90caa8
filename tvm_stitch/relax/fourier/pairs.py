# SPDX-License-Identifier: Apache-2.0
"""Tensors of pairs: real and imaginary parts side by side, in a last axis of two elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax
from tvm.relax import op as R

from ...compat import int_value
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers, only_reader_inside
from ..rewriting.views import RESHAPES, integers_of

Definition = Callable[[Any], relax.Call | None]
"""Returns the call that a variable is bound to, or None."""


def pairs_of(definition: Definition, real: Any, imaginary: Any) -> Any | None:
    """Return the tensor of pairs that has the given parts, in its own shape ``[..., 2]``, or None.

    Args:
        definition: returns the call of a variable.
        real, imaginary: tensors, perhaps parts of one tensor with other extents.
    """
    pair = [_part(definition, each) for each in (real, imaginary)]
    (x, first), (y, second) = pair
    return x if x is not None and x.same_as(y) and (first, second) == (0, 1) else None


def _part(definition: Definition, value: Any) -> tuple[Any, int]:
    """Return the tensor that a value is a slice of, with the slice's position in the last axis of two elements."""
    call = definition(value)
    while call is not None and operator_name(call) in RESHAPES:
        call = call.args[0] if isinstance(call.args[0], relax.Call) else definition(call.args[0])
    if call is None or operator_name(call) != "relax.strided_slice":
        return None, 0
    axes, begins, ends, *steps = (integers_of(each) for each in call.args[1:])
    last = len(call.args[0].ty.shape) - 1
    if axes != [last] or begins is None or ends is None or any(step != [1] for step in steps):
        return None, 0
    if int_value(call.args[0].ty.shape[last]) != 2 or ends[0] != begins[0] + 1:
        return None, 0
    return call.args[0], begins[0]


def joined(call: relax.Call) -> tuple[Any, Any] | None:
    """Return the two tensors that a call joins to pairs, or None. They may have a last axis of one element more."""
    name, rank = operator_name(call), len(call.ty.shape)
    if name not in ("relax.concat", "relax.stack") or not isinstance(call.args[0], relax.Tuple):
        return None
    parts = list(call.args[0].fields)
    axis = call.attrs.axis
    if len(parts) != 2 or axis is None or int(axis) % rank != rank - 1 or int_value(call.ty.shape[-1]) != 2:
        return None
    return parts[0], parts[1]


def is_joined_alone(readers: Readers, values: Mapping[Any, Any], results: Any) -> bool:
    """Return whether both results of a call are read by one call that joins them to pairs, and by nothing else.

    Args:
        readers: the readers of the function's variables.
        values: the values of the function's variables.
        results: the variable of the call's tuple.
    """
    ends = []
    for binding in readers.get(results, ()):
        if binding is None or not isinstance(binding.value, relax.TupleGetItem):
            return False
        reader = only_reader_inside(readers, binding.var)
        while reader is not None and operator_name(reader.value) in RESHAPES:
            reader = only_reader_inside(readers, reader.var)
        ends.append(reader)
    if len(ends) != 2 or ends[0] is None or ends[1] is None or not ends[0].var.same_as(ends[1].var):
        return False
    return isinstance(ends[0].value, relax.Call) and joined(ends[0].value) is not None


def parts_of_pairs(emit: Callable[[Any], Any], pairs: Any) -> list[Any]:
    """Return real and imaginary parts of a tensor ``[..., 2]``."""
    last = len(pairs.ty.shape) - 1
    return [
        emit(R.squeeze(emit(R.strided_slice(pairs, [last], [part], [part + 1])), [last])) for part in (0, 1)
    ]
