# SPDX-License-Identifier: Apache-2.0
"""A matrix product in cuBLASLt's form: a batch of matrices at equal distances, each side transposed or not.

It consists of ten numbers and two transposes. An axis is rows, columns, batch or reduction (K), according to the
tensors that have it. Axes that continue each other are merged. Rows or columns that do not continue become a
batch in which the other side's stride is 0. At most one batch axis may remain, and each side has contiguous lines.
All of it holds for symbolic extents. The numbers are expressions, which the virtual machine evaluates as one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...graph.extent import Extent, is_number, product, same
from ...support.failures import Refusal


@dataclass(frozen=True)
class Axis:
    """An axis of a product, with its strides in elements: 0 in tensors that do not have it.

    An axis that the result does not have is summed over.
    """

    extent: Extent
    left: Extent
    right: Extent
    out: Extent


@dataclass(frozen=True)
class StridedProduct:
    """``out[b, i, j] = sum over k of left[b, i, k] * right[b, k, j]``, for ``batch``, ``rows``, ``columns``,
    ``reduction``.

    All distances are in elements. A line of a matrix is contiguous: a row of ``left``, or a column if it is
    ``left_transposed``. ``left_line`` is the distance between two lines. ``left_batch`` is the distance between two
    matrices, or 0 if all products share one. The other sides have the same fields.

    ``swapped``: left and right are exchanged, because the result is stored by columns.
    """

    rows: Extent
    columns: Extent
    reduction: Extent
    batch: Extent
    left_line: Extent
    right_line: Extent
    out_line: Extent
    left_batch: Extent
    right_batch: Extent
    out_batch: Extent
    left_transposed: bool = False
    right_transposed: bool = False
    swapped: bool = False

    @property
    def numbers(self) -> tuple[Extent, ...]:
        """The numbers that the computing function gets as one shape."""
        return (
            self.rows, self.columns, self.reduction, self.batch, self.left_line, self.right_line, self.out_line,
            self.left_batch, self.right_batch, self.out_batch,
        )  # fmt: skip

    def mode(self, *more: str) -> str:
        """Return the mode that the function gets: words for exceptions from the rule, and ``more`` words."""
        words = [name for name in ("left_transposed", "right_transposed") if getattr(self, name)]
        return " ".join([*words, *(word for word in more if word)])


def strided(axes: Sequence[Axis]) -> StridedProduct:
    """Return the product over axes.

    Args:
        axes: those of the result, outermost first, and one to sum over.

    Raises:
        Refusal: if the product is not one batch of matrices at equal distances.
    """
    live = [axis for axis in axes if not is_number(axis.extent, 1)]
    reduction = [axis for axis in live if _absent(axis.out)]
    if len(reduction) > 1:
        raise Refusal("it sums over several axes")
    if any(_absent(axis.left) or _absent(axis.right) for axis in reduction):
        raise Refusal("an operand is repeated along the axis that it sums over")
    kept = [axis for axis in live if not _absent(axis.out)]
    rows = _merged([a for a in kept if not _absent(a.left) and _absent(a.right)])
    columns = _merged([a for a in kept if _absent(a.left) and not _absent(a.right)])
    rest = [a for a in kept if _absent(a.left) == _absent(a.right)]
    batch = _merged([*rest, *rows[:-1], *columns[:-1]])
    if len(batch) > 1:
        raise Refusal(f"its matrices lie at distances of {len(batch)} kinds")
    row = rows[-1] if rows else _NONE
    column = columns[-1] if columns else _NONE
    return _laid_out(batch[0] if batch else _NONE, row, column, reduction[0] if reduction else _NONE)


_NONE = Axis(1, 0, 0, 0)


def _absent(stride: Extent) -> bool:
    return is_number(stride, 0)


def _is_unit(stride: Extent) -> bool:
    return is_number(stride, 1)


def _merged(axes: list[Axis]) -> list[Axis]:
    """Return the axes with those merged that continue each other."""
    merged: list[Axis] = []
    for axis in reversed(axes):  # innermost first
        for i, inner in enumerate(merged):
            if all(same(getattr(axis, t), product([getattr(inner, t), inner.extent])) for t in _TENSORS):
                merged[i] = replace(inner, extent=product([axis.extent, inner.extent]))
                break
        else:
            merged.append(axis)
    return merged[::-1]


_TENSORS = ("left", "right", "out")


def _laid_out(batch: Axis, row: Axis, column: Axis, reduction: Axis) -> StridedProduct:
    m, n, k = row.extent, column.extent, reduction.extent
    if not (_is_unit(column.out) or _absent(column.out)):
        if not (_is_unit(row.out) or _absent(row.out)):
            raise Refusal("neither rows nor columns of its result are contiguous")
        transposed = [
            replace(axis, left=axis.right, right=axis.left) for axis in (batch, column, row, reduction)
        ]
        return replace(_laid_out(*transposed), swapped=True)
    left_line, left_transposed = _side(row.left, reduction.left, k, "left")
    right_line, right_transposed = _side(reduction.right, column.right, n, "right")
    out_line = n if _absent(row.out) else row.out
    return StridedProduct(
        m, n, k, batch.extent, left_line, right_line, out_line, batch.left, batch.right, batch.out,
        left_transposed, right_transposed,
    )  # fmt: skip


def _side(outer: Extent, inner: Extent, columns: Extent, name: str) -> tuple[Extent, bool]:
    """Return the distance between lines of a matrix, and whether its lines are columns.

    Args:
        outer: stride between rows, 0 if there is one row.
        inner: stride between columns.
        columns: number of columns.
        name: name of the side.
    """
    if _is_unit(inner) or _absent(inner):
        return (columns if _absent(outer) else outer), False
    if _is_unit(outer) or _absent(outer):
        return inner, True
    raise Refusal(f"neither rows nor columns of its {name} side are contiguous")
