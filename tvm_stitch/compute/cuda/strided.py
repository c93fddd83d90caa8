# SPDX-License-Identifier: Apache-2.0
"""A matrix product as cuBLASLt takes it: a batch of matrices at equal distances, each side transposed or not.

Ten numbers and two transposes. Axes are rows, columns, batch or depth by which tensors have them; those that continue
each other are one. Rows or columns that do not continue become a batch in which the other side's stride is 0. At most
one batch axis may be left, and each side has lines that are contiguous. All of it holds for symbolic extents: the
numbers are expressions, which the virtual machine evaluates as one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...graph.extent import Extent, is_number, product, same
from ...support.failures import Refusal


@dataclass(frozen=True)
class Axis:
    """An axis of a product, with its strides in elements: 0 in tensors that do not have it.

    One that the result does not have is summed over.
    """

    extent: Extent
    left: Extent
    right: Extent
    out: Extent


@dataclass(frozen=True)
class StridedProduct:
    """``out[b, i, j] = sum over k of left[b, i, k] * right[b, k, j]``, for ``batch``, ``rows``, ``columns``, ``depth``.

    ``left_line`` is the distance between two lines of a matrix, a line being what is contiguous: of ``left`` a row, or
    a column if it is ``left_transposed``. ``left_batch`` is the distance between two matrices, 0 where all products
    share one. All are in elements.

    ``swapped``: left and right are the product's right and left side, because the result is stored by columns.
    """

    rows: Extent
    columns: Extent
    depth: Extent
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
        """What the function that computes it gets as one shape."""
        return (
            self.rows, self.columns, self.depth, self.batch, self.left_line, self.right_line, self.out_line,
            self.left_batch, self.right_batch, self.out_batch,
        )  # fmt: skip

    def mode(self, *more: str) -> str:
        """What the function gets as its mode: words for what is not the rule, and ``more`` of them."""
        words = [name for name in ("left_transposed", "right_transposed") if getattr(self, name)]
        return " ".join([*words, *(word for word in more if word)])


def strided(axes: Sequence[Axis]) -> StridedProduct:
    """Return the product over axes.

    Args:
        axes: those of the result from the outermost on, and one to sum over.

    Raises:
        Refusal: when that is not one batch of matrices at equal distances.
    """
    live = [axis for axis in axes if not is_number(axis.extent, 1)]
    depth = [axis for axis in live if _absent(axis.out)]
    if len(depth) > 1:
        raise Refusal("it sums over several axes")
    if any(_absent(axis.left) or _absent(axis.right) for axis in depth):
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
    return _laid_out(batch[0] if batch else _NONE, row, column, depth[0] if depth else _NONE)


_NONE = Axis(1, 0, 0, 0)


def _absent(stride: Extent) -> bool:
    return is_number(stride, 0)


def _is_unit(stride: Extent) -> bool:
    return is_number(stride, 1)


def _merged(axes: list[Axis]) -> list[Axis]:
    """Return the axes with each that continues another one made part of it."""
    found: list[Axis] = []
    for axis in reversed(axes):  # from the innermost on
        for i, inner in enumerate(found):
            if all(same(getattr(axis, t), product([getattr(inner, t), inner.extent])) for t in _TENSORS):
                found[i] = replace(inner, extent=product([axis.extent, inner.extent]))
                break
        else:
            found.append(axis)
    return found[::-1]


_TENSORS = ("left", "right", "out")


def _laid_out(batch: Axis, row: Axis, column: Axis, depth: Axis) -> StridedProduct:
    m, n, k = row.extent, column.extent, depth.extent
    if not (_is_unit(column.out) or _absent(column.out)):
        if not (_is_unit(row.out) or _absent(row.out)):
            raise Refusal("neither rows nor columns of its result are contiguous")
        turned = [replace(axis, left=axis.right, right=axis.left) for axis in (batch, column, row, depth)]
        return replace(_laid_out(*turned), swapped=True)
    left_line, left_transposed = _side(row.left, depth.left, k, "left")
    right_line, right_transposed = _side(depth.right, column.right, n, "right")
    out_line = n if _absent(row.out) else row.out
    return StridedProduct(
        m, n, k, batch.extent, left_line, right_line, out_line, batch.left, batch.right, batch.out,
        left_transposed, right_transposed,
    )  # fmt: skip


def _side(outer: Extent, inner: Extent, columns: Extent, name: str) -> tuple[Extent, bool]:
    """Return the distance between lines of a matrix, and whether its lines are columns.

    Args:
        outer: the stride between rows, 0 where there is one.
        inner: that between columns, of which there are ``columns``.
        name: which side it is.
    """
    if _is_unit(inner) or _absent(inner):
        return (columns if _absent(outer) else outer), False
    if _is_unit(outer) or _absent(outer):
        return inner, True
    raise Refusal(f"neither rows nor columns of its {name} side are contiguous")
