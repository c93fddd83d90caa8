# SPDX-License-Identifier: Apache-2.0
"""Gathers of whole slices along a leading axis, whose numbers are known only when the model runs.

A mixture of experts reads the weights of its chosen experts so: ``output[i, n, k] = weights[chosen[i], n, k]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import compat
from ..compat import Expr
from .extent import Extent, is_number, same
from .ir import Axis, Operator, Tensor


@dataclass(frozen=True)
class Gather:
    """``output[i..., j...] = source[numbers[i...], j...]``, for all elements of ``numbers`` in their order.

    Attributes:
        source: the tensor whose slices are read, unchanged.
        numbers: integers. Trailing axes of one element may follow the axes ``i``.
    """

    source: Tensor
    numbers: Tensor


def gather_of(op: Operator | None) -> Gather | None:
    """Return the gather that an operator computes, or None if it computes something else."""
    if op is None or op.is_reduce or not compat.is_load(op.value):
        return None
    first, *inner = compat.elements(op.value.indices)
    number = first.value if compat.kind(first) == "Cast" else first
    outer = len(op.spatial) - len(inner)
    if not compat.is_load(number) or outer < 0:
        return None
    source = op.operand[compat.load_buffer(op.value)]
    numbers = op.operand[compat.load_buffer(number)]
    if "int" not in numbers.dtype or source.dtype != op.output.dtype:
        return None
    at = compat.elements(number.indices)
    covers = _are_whole(inner, op.spatial[outer:], source.shape[1:])
    covers = covers and _are_whole(at[:outer], op.spatial[:outer], numbers.shape[:outer])
    covers = covers and len(at) >= outer and all(is_number(extent, 1) for extent in numbers.shape[outer:])
    return Gather(source, numbers) if covers else None


def _are_whole(indices: Sequence[Expr], axes: Sequence[Axis], extents: Sequence[Extent]) -> bool:
    """Return whether each index is its axis, which has the extent of the tensor that is read."""
    return len(indices) == len(axes) == len(extents) and all(
        same(axis.extent, extent)
        and (compat.same_var(index, axis.var) or (is_number(extent, 1) and compat.int_value(index) == 0))
        for index, axis, extent in zip(indices, axes, extents)
    )
