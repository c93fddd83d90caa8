# SPDX-License-Identifier: Apache-2.0
"""The data of a convolution: a tensor in any order of its axes, possibly with a border or dilated.

A task copies the lines that it reads into a block, with the border around them and the channels innermost. Data
that needs neither is read as stored. If channels do not mix, each panel copies only its channels. Copying all
channels for every task took more than half of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ... import compat
from ...compat import Expr, Var
from ...graph.access import branches
from ...graph.extent import Extent, is_number, same
from ...graph.ir import Operator, Tensor
from ...support.failures import Refusal


@dataclass(frozen=True)
class Padded:
    """``data[i...] = source[permuted((i - before) / spacing)]`` if that is an element of the source, else ``fill``.

    Attributes:
        source: a tensor in memory.
        order: for each axis of the source, the axis of the data that indexes it.
        shape: extents of the data.
        inner: for each axis of the data, the extent of the source.
        before: for each axis of the data, the elements of the border before the source's.
        fill: value of the border, or None if there is no border.
        spacing: for each axis of the data, the distance between neighbours of the source (1: contiguous). () means 1
            for all axes.
    """

    source: Tensor
    order: tuple[int, ...]
    shape: tuple[Extent, ...]
    inner: tuple[Extent, ...]
    before: tuple[int, ...]
    fill: Expr | None
    spacing: tuple[int, ...] = ()

    @property
    def is_dilated(self) -> bool:
        """True if the data is dilated: zeros lie between elements of the source."""
        return any(each != 1 for each in self.spacing)

    @property
    def only_permutes(self) -> bool:
        """True if the data is all of the source, in some order of its axes."""
        return (
            self.fill is None
            and not self.is_dilated
            and not any(self.before)
            and all(map(same, self.shape, self.inner))
        )

    @property
    def in_order(self) -> bool:
        """True if the axes of the source are in the data's order."""
        return list(self.order) == sorted(self.order)

    @property
    def is_plain(self) -> bool:
        """True if the data is the source itself."""
        return self.only_permutes and self.in_order


def is_stored(tensor: Tensor) -> bool:
    """Return whether a tensor is in memory before the kernel begins."""
    return tensor.producer is None


def padded(tensor: Tensor, is_source: Callable[[Tensor], bool] = is_stored) -> tuple[Padded, list[Operator]]:
    """Return how a tensor derives from a source, and the operators that compute it.

    Args:
        tensor: a tensor.
        is_source: returns whether a tensor is a source. By default tensors in memory are.

    Raises:
        Refusal: if it is computed in another way.
    """
    if is_source(tensor):
        axes = tuple(range(len(tensor.shape)))
        return Padded(tensor, axes, tensor.shape, tensor.shape, (0,) * len(axes), None), []
    op = _maker(tensor)
    padding = _padding(op)
    operators = [op]
    while not is_source(padding.source):
        below = _maker(padding.source)
        lower = _padding(below)
        operators.append(below)
        padding = _over(padding, lower, Refusal(f"{padding.source.name} is computed in the same kernel"))
    return padding, operators


def _maker(tensor: Tensor) -> Operator:
    assert tensor.producer is not None
    return tensor.producer


def _over(upper: Padded, lower: Padded, error: Refusal) -> Padded:
    """Return the composition of two steps: ``upper`` reads the result of ``lower``.

    The lower step may be a permutation, a dilation or a border. Of two borders one has to be empty.
    """
    order = tuple(upper.order[axis] for axis in lower.order)
    if upper.only_permutes:
        axes = [upper.order.index(axis) for axis in range(len(upper.order))]  # axes of the data below
        inner, before = (tuple(of[axis] for axis in axes) for of in (lower.inner, lower.before))
        spacing = tuple(lower.spacing[axis] for axis in axes) if lower.spacing else ()
        return Padded(lower.source, order, upper.shape, inner, before, lower.fill, spacing)
    if lower.only_permutes:
        return Padded(lower.source, order, upper.shape, upper.inner, upper.before, upper.fill, upper.spacing)
    if not lower.is_dilated or upper.is_dilated or not upper.in_order or any(lower.before):
        raise error
    if upper.fill is not None and float(upper.fill.value) != 0:
        raise error
    fill = upper.fill if upper.fill is not None else lower.fill
    return Padded(lower.source, order, upper.shape, lower.inner, upper.before, fill, lower.spacing)


def _padding(op: Operator) -> Padded:
    """Return the step of an operator that adds a border to a tensor, dilates it or permutes its axes."""
    refusal = Refusal(f"{op.output.name} is computed in the same kernel")
    if op.is_reduce:
        raise refusal
    axes = [axis.var for axis in op.spatial]
    shape = tuple(axis.extent for axis in op.spatial)
    chosen = branches(op.value)
    load, fill = (op.value, None) if chosen is None else (chosen[1], chosen[2])
    if not compat.is_load(load) or (fill is not None and compat.kind(fill) not in ("FloatImm", "IntImm")):
        raise refusal
    source = op.operand[compat.load_buffer(load)]
    indices = compat.elements(load.indices)
    if any(compat.kind(index) == "FloorDiv" for index in indices):
        return _dilation(op, source, indices, refusal)
    order, before = [], [0] * len(axes)
    for index in indices:
        var, offset = _shifted(index, refusal)
        if var not in axes or axes.index(var) in order:
            raise refusal
        order.append(axes.index(var))
        before[order[-1]] = offset
    if len(order) != len(axes):
        raise refusal
    inner: list[Extent] = list(shape)
    for axis, extent in zip(order, source.shape):
        inner[axis] = extent
    wanted = {v: _range(b, n, e) for v, b, n, e in zip(axes, before, inner, shape)}
    if chosen is not None and _bounds(chosen[0], dict(zip(axes, shape)), refusal) != wanted:
        raise refusal
    return Padded(source, tuple(order), shape, tuple(inner), tuple(before), fill)


def _dilation(op: Operator, source: Tensor, indices: Sequence[Expr], refusal: Refusal) -> Padded:
    """Return the step of an operator that puts zeros between the elements of a tensor."""
    chosen = branches(op.value)
    if chosen is None or float(chosen[2].value) != 0 or len(indices) != len(op.spatial):
        raise refusal
    spacing = {}
    for index, axis, extent in zip(indices, op.spatial, source.shape):
        each = 1
        if compat.kind(index) == "FloorDiv":
            index, each = index.a, compat.int_value(index.b) or 0
        if not compat.same_var(index, axis.var) or each < 1:
            raise refusal
        if each > 1 and not (isinstance(extent, int) and is_number(axis.extent, (extent - 1) * each + 1)):
            raise refusal
        if each == 1 and not same(axis.extent, extent):
            raise refusal
        spacing[axis.var] = each
    if _divisors(chosen[0], refusal) != {var: each for var, each in spacing.items() if each > 1}:
        raise refusal
    axes, shape = tuple(range(len(indices))), tuple(axis.extent for axis in op.spatial)
    return Padded(
        source,
        axes,
        shape,
        source.shape,
        (0,) * len(axes),
        chosen[2],
        tuple(spacing[a.var] for a in op.spatial),
    )


def _divisors(condition: Expr, refusal: Refusal) -> dict[Var, int]:
    """Return the divisibility constraints that a condition implies, by variable, if it implies nothing else."""
    divisors: dict[Var, int] = {}
    waiting = [condition]
    while waiting:
        term = waiting.pop()
        if compat.kind(term) == "And":
            waiting += [term.a, term.b]
            continue
        if compat.kind(term) != "EQ" or compat.kind(term.a) != "FloorMod" or compat.int_value(term.b) != 0:
            raise refusal
        var, each = term.a.a, compat.int_value(term.a.b)
        if (
            compat.kind(var) not in ("Var", "SizeVar")
            or each is None
            or divisors.setdefault(var, each) != each
        ):
            raise refusal
    return divisors


def _shifted(index: Expr, refusal: Refusal) -> tuple[Var, int]:
    """Return a variable and the number subtracted from it."""
    if compat.kind(index) in ("Var", "SizeVar"):
        return index, 0
    if compat.kind(index) in ("Sub", "Add") and compat.kind(index.a) in ("Var", "SizeVar"):
        offset = compat.int_value(index.b)
        if offset is not None:
            return index.a, offset if compat.kind(index) == "Sub" else -offset
    raise refusal


Range = tuple[int, int]
"""The first value and the end. The end is -1 if it is symbolic."""


def _range(before: int, inner: Extent, extent: Extent) -> Range:
    """Return the range of an axis that the source covers."""
    if isinstance(inner, int) and isinstance(extent, int):
        return max(before, 0), min(before + inner, extent)
    return 0, -1


def _bounds(condition: Expr, extents: dict[Var, Extent], refusal: Refusal) -> dict[Var, Range]:
    """Return the ranges of variables in which a conjunction of bounds holds."""
    ranges = {v: [0, e if isinstance(e, int) else -1] for v, e in extents.items()}
    waiting = [condition]
    while waiting:
        term = waiting.pop()
        name = compat.kind(term)
        if name == "And":
            waiting += [term.a, term.b]
            continue
        if name not in ("LT", "LE", "GT", "GE"):
            raise refusal
        a, b = (term.a, term.b) if name in ("LT", "LE") else (term.b, term.a)
        strict = name in ("LT", "GT")
        low, high = compat.int_value(a), compat.int_value(b)
        var = b if low is not None else a
        if var not in ranges or ranges[var][1] == -1:
            raise refusal
        if low is not None:
            ranges[var][0] = max(ranges[var][0], low + strict)
        elif high is not None:
            ranges[var][1] = min(ranges[var][1], high + (not strict))
        else:
            raise refusal
    return {v: (low, high) for v, (low, high) in ranges.items()}
