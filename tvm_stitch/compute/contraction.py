# SPDX-License-Identifier: Apache-2.0
"""Contraction: a matrix product, with any number of leading axes, recognized in a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import compat
from ..compat import Expr, Var
from ..failures import Refusal
from ..graph.extent import Extent, is_number, product, same
from ..graph.ir import Axis, Operator, Tensor


@dataclass(frozen=True)
class Contraction:
    """``output[batch, rows, columns] = sum over depth of left[batch, rows, depth] * right[batch, depth, columns]``.

    All tensors are compact and row-major; ``batch`` and ``rows`` each stand for all their axes. ``batch`` is 1 where
    the right side has no axis in common with the output but its columns (a weight).

    Attributes:
        transposed: the right side is stored as ``[batch, columns, depth]``.
    """

    left: Tensor
    right: Tensor
    output: Tensor
    batch: Extent
    rows: Extent
    columns: Extent
    depth: Extent
    transposed: bool


def contraction_of(op: Operator) -> Contraction:
    """The contraction that an operator is.

    Raises:
        Refusal: when it is something else, or its tensors are stored in another order.
    """
    if not op.contraction or op.combiner != "sum" or len(op.reduce) != 1 or not op.spatial:
        raise Refusal("no matrix product")
    left, right = _factors(op)
    depth, columns = op.reduce[0], op.spatial[-1]
    outer = [axis for axis in op.spatial[:-1] if not _is_unit(axis)]
    leading = [axis.var for axis in outer]
    if columns.var in left[1] and columns.var not in right[1]:
        left, right = right, left
    if [*leading, depth.var] != left[1]:
        raise Refusal(f"{left[0].name} is not read row by row")
    shared = right[1][:-2]
    if shared != leading[: len(shared)] or len(right[1]) < 2:
        raise Refusal(f"{right[0].name} is not read matrix by matrix")
    if right[1][-2:] not in ([depth.var, columns.var], [columns.var, depth.var]):
        raise Refusal(f"{right[0].name} is not read as a matrix")
    count = len(shared)
    return Contraction(
        left[0],
        right[0],
        op.output,
        _product(outer[:count]),
        _product(outer[count:]),
        columns.extent,
        depth.extent,
        right[1][-1].same_as(depth.var),
    )


def _factors(op: Operator) -> tuple[tuple[Tensor, list[Var]], tuple[Tensor, list[Var]]]:
    if compat.kind(op.value) != "Mul":
        raise Refusal("no product of two tensors")
    return _factor(op, op.value.a), _factor(op, op.value.b)


def _factor(op: Operator, factor: Expr) -> tuple[Tensor, list[Var]]:
    """A tensor and the axes' variables that it is indexed by, but for leading axes of one element.

    Raises:
        Refusal: when its elements are converted or indexed in another way.
    """
    if not compat.is_load(factor):
        raise Refusal("a factor is computed, not read")
    indices = compat.elements(factor.indices)
    tensor = op.operand[compat.load_buffer(factor)]
    extents = {axis.var: axis.extent for axis in op.axes}
    units = {axis.var for axis in op.spatial[:-1] if _is_unit(axis)}
    whole = []
    for index, extent in zip(indices, tensor.shape):
        if is_number(extent, 1) and (index in units or compat.int_value(index) == 0):
            continue
        if index not in extents or not same(extents[index], extent):
            raise Refusal(f"{tensor.name} is not read along whole axes")
        whole.append(index)
    return tensor, whole


def _is_unit(axis: Axis) -> bool:
    return is_number(axis.extent, 1)


def _product(axes: Sequence[Axis]) -> Extent:
    return product(tuple(axis.extent for axis in axes))
