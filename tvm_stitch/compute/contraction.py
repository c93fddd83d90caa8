# SPDX-License-Identifier: Apache-2.0
"""Contraction: a matrix product, with any number of leading axes, recognized in a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import compat
from ..compat import Expr, Var
from ..graph.dtype import BYTES, MULTIPLIED, summed_dtype
from ..graph.extent import Extent, is_number, product, same
from ..graph.gather import gather_of
from ..graph.ir import Axis, Operator, Tensor
from ..support.failures import Refusal
from .cpu.padding import is_stored, padded


@dataclass(frozen=True)
class Contraction:
    """``output[batch, row, column] = sum over k of left[batch, row, k] * right[batch, k, column]``.

    ``reduction`` is the extent of ``k``, the reduction dimension. Factors of a half type are multiplied and summed in
    float32, bytes in int32. All tensors are compact and row-major. ``batch`` and ``rows`` each combine several axes.
    ``batch`` is 1 for a weight whose only axis in the output is the columns, if the left side is not transposed.

    Attributes:
        transposed: the right side is stored as ``[batch, columns, reduction]``.
        left_transposed: the left side is stored as ``[batch, reduction, rows]``.
        shared: the right side is the same for the whole batch.
        left_shared: the left side is the same for the whole batch.
        chosen: integers, one for each matrix of the batch. The right side's matrix has this number in ``right``. None
            if the matrices are read in order.
    """

    left: Tensor
    right: Tensor
    output: Tensor
    batch: Extent
    rows: Extent
    columns: Extent
    reduction: Extent
    transposed: bool
    left_transposed: bool = False
    shared: bool = False
    left_shared: bool = False
    chosen: Tensor | None = None

    @property
    def summed(self) -> str:
        """The dtype in which products are summed."""
        return summed_dtype(self.output.dtype)

    @property
    def has_weight(self) -> bool:
        """True if the right side is a single matrix, and known before the kernel begins."""
        return self.chosen is None and (self.shared or is_number(self.batch, 1))


def contraction_of(op: Operator) -> tuple[Contraction, list[Operator]]:
    """Return the contraction that an operator computes, and the operators that permute or gather its operands.

    The columns are the last axis. If it has one element, they are the axis before, where only one float factor has
    that: vectors then run along the reduction of a matrix times a vector.

    Raises:
        Refusal: if the operator computes something else, or its tensors are stored in another order.
    """
    if not op.contraction or op.combiner != "sum" or len(op.reduce) != 1 or not op.spatial:
        raise Refusal("no matrix product")
    reduction, columns = op.reduce[0], _columns_of(op)
    left, right = _factors(op, columns)
    outer = [axis for axis in op.spatial if axis is not columns and not _is_unit(axis)]
    leading = [axis.var for axis in outer]
    if columns.var in left.axes and columns.var not in right.axes:
        left, right = right, left
    if left.chosen is not None:
        raise Refusal(f"{left.tensor.name} is gathered row by row")
    shared = right.axes[:-2]
    if shared != leading[: len(shared)] or len(right.axes) < 2:
        raise Refusal(f"{right.tensor.name} is not read matrix by matrix")
    if right.axes[-2:] not in ([reduction.var, columns.var], [columns.var, reduction.var]):
        raise Refusal(f"{right.tensor.name} is not read as a matrix")
    count = len(shared)
    left_shared = count > 0 and not set(left.axes) & set(shared)
    rows = leading[count:] if left_shared else leading
    left_transposed = bool(rows) and left.axes == [*rows[:-1], reduction.var, rows[-1]]
    if left_transposed:
        # Only the last axis of rows has adjacent elements.
        count, before = len(leading) - 1, count
        if before not in ((count,) if left_shared else (0, count)):
            raise Refusal(f"{left.tensor.name} is not read matrix by matrix")
    elif left.axes != [*rows, reduction.var]:
        raise Refusal(f"{left.tensor.name} is not read row by row")
    contraction = Contraction(
        left.tensor,
        right.tensor,
        op.output,
        _product(outer[:count]),
        _product(outer[count:]),
        columns.extent,
        reduction.extent,
        right.axes[-1].same_as(reduction.var),
        left_transposed,
        not shared and count > 0,
        left_shared,
        right.chosen,
    )
    return contraction, [*left.taken, *right.taken]


@dataclass(frozen=True)
class _Factor:
    """A tensor in memory that is a factor, the variables that index its axes, and the operators that move it.

    Leading axes of one element are left out. ``chosen`` numbers the matrices of a gathered tensor, for the axes that
    precede the last two.
    """

    tensor: Tensor
    axes: list[Var]
    taken: list[Operator]
    chosen: Tensor | None = None


def _columns_of(op: Operator) -> Axis:
    """Return the axis of the columns: the last one, or the last but one of a matrix times a vector."""
    last = op.spatial[-1]
    wide = [axis for axis in op.spatial if not _is_unit(axis)]
    if not _is_unit(last) or not wide or compat.kind(op.value) != "Mul" or op.output.dtype not in MULTIPLIED:
        return last
    if not isinstance(wide[-1].extent, int):
        return last
    factors = [loaded(factor) for factor in (op.value.a, op.value.b)]
    readers = [
        f for f in factors if any(compat.same_var(i, wide[-1].var) for i in compat.elements(f.indices))
    ]
    return wide[-1] if len(readers) == 1 else last


def _factors(op: Operator, columns: Axis) -> tuple[_Factor, _Factor]:
    if compat.kind(op.value) != "Mul":
        raise Refusal("no product of two tensors")
    return _factor(op, op.value.a, columns), _factor(op, op.value.b, columns)


def _factor(op: Operator, factor: Expr, columns: Axis) -> _Factor:
    """Return the tensor that is read as a factor.

    Raises:
        Refusal: if its elements are computed, converted or indexed in another way.
    """
    factor = loaded(factor)
    indices = compat.elements(factor.indices)
    tensor = op.operand[compat.load_buffer(factor)]
    source, taken = padded(tensor, _is_source)
    if not source.only_permutes:
        raise Refusal(f"{tensor.name} is computed in the same kernel")
    extents = {axis.var: axis.extent for axis in op.axes}
    units = {axis.var for axis in op.spatial if axis is not columns and _is_unit(axis)}
    whole = []
    for index, extent in zip([indices[axis] for axis in source.order], source.source.shape):
        if is_number(extent, 1) and (index in units or compat.int_value(index) == 0):
            continue
        if index not in extents or not same(extents[index], extent):
            raise Refusal(f"{tensor.name} is not read along whole axes")
        whole.append(index)
    maker = source.source.producer
    if maker is None:
        return _Factor(source.source, whole, taken)
    gather = gather_of(maker)
    if gather is None or not (is_stored(gather.source) and is_stored(gather.numbers)):
        raise Refusal(f"{tensor.name} is computed in the same kernel")
    if len(gather.source.shape) != 3:
        raise Refusal(f"{tensor.name} is not gathered matrix by matrix")
    return _Factor(gather.source, whole, [*taken, maker], gather.numbers)


def _is_source(tensor: Tensor) -> bool:
    return is_stored(tensor) or gather_of(tensor.producer) is not None


def loaded(factor: Expr) -> Expr:
    """Return the load of a factor, before it is widened.

    Raises:
        Refusal: if the factor is computed.
    """
    narrow = {"float32": MULTIPLIED, "int32": BYTES}
    if compat.kind(factor) == "Cast" and compat.dtype_of(factor.value) in narrow.get(
        compat.dtype_of(factor), ()
    ):
        factor = factor.value
    if not compat.is_load(factor):
        raise Refusal("a factor is computed, not read")
    return factor


def _is_unit(axis: Axis) -> bool:
    return is_number(axis.extent, 1)


def _product(axes: Sequence[Axis]) -> Extent:
    return product(tuple(axis.extent for axis in axes))
