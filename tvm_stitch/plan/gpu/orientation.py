# SPDX-License-Identifier: Apache-2.0
"""Orientation of reductions and rows in memory: along the innermost axis of their operands, or across it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from ... import compat
from ...compat import Expr, Var
from ...device import DeviceModel
from ...graph.extent import Extent, is_number, product
from ...graph.ir import Operator, StitchGraph, Tensor
from ...graph.rewrite.interleaved import Runs, runs_of
from ..iteration.alignment import Alignment, Key, op_points
from ..iteration.domain import At, Domain, Point


class Orientation(enum.Enum):
    """The orientation of a reduction in memory."""

    ROW = "along the innermost axis of what it reads"
    COLUMN = "across it"
    ALL = "to one result"


def orientation(op: Operator) -> Orientation:
    """Return whether an operator reduces along its operand's innermost axis, across it, or to one result."""
    if op.output.size == 1:
        return Orientation.ALL
    reduced = {a.var for a in op.reduce}
    accesses = sorted(op.accesses, key=lambda a: -int(as_int(a.tensor.size)))
    for access in accesses:
        if used := _innermost(access.indices, access.tensor):
            return Orientation.ROW if used & reduced else Orientation.COLUMN
    return Orientation.ROW


def _innermost(indices: Sequence[Expr], tensor: Tensor) -> set[Var]:
    """Return the variables of the innermost index that has any, of an axis with more than one element."""
    for index, extent in reversed(list(zip(indices, tensor.shape))):
        if not is_number(extent, 1) and (used := compat.free_vars(index)):
            return used
    return set()


def as_int(extent: Extent) -> int:
    """Return a static extent's value, 0 for a symbolic one."""
    return extent if isinstance(extent, int) else 0


def has_many_results(op: Operator, device: DeviceModel) -> bool:
    """Return whether a thread for every result suits an operator.

    The threads then keep the device busy, and neighbouring threads read neighbouring elements. Reductions of a few
    elements suit as well.
    """
    size = as_int(op.output.size)
    few = as_int(op_points(op)) <= device.choices.uncoalesced_elements * size
    return few or size >= device.sms * device.choices.busy_results


def wants_partition(graph: StitchGraph, device: DeviceModel) -> bool:
    """Return whether rows would lie across memory, so that sums of columns block by block are better.

    Sums of a product of few rows have stages as well. Their blocks stay for several rows of weights.
    """
    if graph.has_products:
        return True
    return any(
        (orientation(op) is Orientation.COLUMN and not has_many_results(op, device))
        or short_runs(op, device) is not None
        for op in graph.reduces
    )


def short_runs(op: Operator, device: DeviceModel) -> Runs | None:
    """Return the runs of a reduction whose rows interleave in memory, if its rows would read uncoalesced, else None.

    A sector that has a run also has elements of other rows then. A reduction that reads little stays, because the
    caches hold its sectors.
    """
    runs, choices = runs_of(op), device.choices
    if runs is None or has_many_results(op, device) or runs.read < choices.transposed_bytes:
        return None
    return runs if choices.least_transposed_bytes > choices.uncoalesced_times * runs.bytes else None


def is_strided(alignment: Alignment) -> bool:
    """Return whether large inputs are read across memory: neighbouring columns of a row are not neighbours there."""
    return reads_are_strided(alignment.domain, alignment.reads)


def reads_are_strided(domain: Domain, reads_of: Mapping[Key, Sequence[Point | None]]) -> bool:
    """Return what :func:`is_strided` does, for a part of an alignment's reads."""
    if domain.flat:
        return False
    for key, reads in reads_of.items():
        for access, point in zip(key[0].accesses, reads):
            if point is None or point.at is not At.INDEX or not point.per_column:
                continue
            size, points = as_int(access.tensor.size), as_int(product([domain.rows, point.columns]))
            used = _innermost(point.indices, access.tensor)
            if size * 2 > points and used and domain.column not in used:
                return True
    return False
