# SPDX-License-Identifier: Apache-2.0
"""Check that each thread of a schedule reads from registers only elements that it wrote there itself.

The registers that threads read and write are enumerated for the first and the last block of the grid.
:mod:`.declining` refuses schedules that fail.

Fault: dlight's rule for reductions distributes the operators behind some reductions over other threads than the
    reduction. A thread then reads registers that it never wrote.
Seen in: TVM 0.27.0
Input: ``R.nn.relu(R.nn.conv2d(x, w, groups=2))`` of (1, 8, 3, 5) and (12, 4, 1, 1) float32, target cuda
Upstream: none known
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from ... import compat
from ..prim_funcs import REDUCED

MOST_POINTS = 1 << 21
"""The most points of an access, counted over all threads of a block. Accesses with more points are not checked."""

_SIZE = 13
"""The value that the check assumes for a symbolic extent."""

_BINARY = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.remainder,
    "Min": np.minimum,
    "Max": np.maximum,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
}


class _Unknown(Exception):
    """An expression cannot be evaluated here."""


@dataclass(frozen=True)
class _Access:
    """A block's access of a buffer in registers: a box of elements at every point of its loops.

    Attributes:
        begin: the first element of the box, along each dimension.
        extents: the size of the box, along each dimension.
        where: the condition under which the access happens.
        loops: around the block, outermost first.
        of_all: thread axes along which all threads hold the written elements, since they reduced them together.
    """

    begin: tuple[Any, ...]
    extents: tuple[int, ...]
    where: Any
    loops: tuple[Any, ...]
    of_all: frozenset[str]


def foreign_read(func: Any) -> str | None:
    """Return the name of a buffer in registers of which a thread reads elements that it did not write, or None."""
    writes: dict[Any, list[_Access]] = {}
    reads: dict[Any, list[_Access]] = {}
    for realize, loops in _blocks(func.body, ()):
        block = realize.block
        values = dict(zip((axis.var for axis in block.iter_vars), realize.iter_values))
        of_all = {
            _tag(loop)
            for axis, value in zip(block.iter_vars, realize.iter_values)
            if axis.iter_type == REDUCED
            for loop in loops
            if _tag(loop) and loop.loop_var in compat.free_vars(value)
        }
        written = {region.source for region in block.writes}
        for accesses, regions in ((writes, block.writes), (reads, block.reads)):
            for region in regions:
                buffer = region.source
                if buffer.scope() != "local" or (accesses is reads and buffer in written):
                    continue
                begin = tuple(compat.substitute(each.min, values) for each in region.region)
                extents = tuple(compat.int_value(each.extent) or 1 for each in region.region)
                reduced = frozenset(of_all if accesses is writes else ())
                access = _Access(begin, extents, realize.predicate, loops, reduced)
                accesses.setdefault(buffer, []).append(access)
    for buffer, each in reads.items():
        if buffer in writes and not _are_own(buffer, writes[buffer], each):
            return str(buffer.name)
    return None


def _blocks(stmt: Any, loops: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the innermost blocks with the loops around them."""
    name = compat.kind(stmt)
    if name == "For":
        yield from _blocks(stmt.body, (*loops, stmt))
    elif name == "SeqStmt":
        for each in stmt.seq:
            yield from _blocks(each, loops)
    elif name == "SBlockRealize":
        inner = list(_blocks(stmt.block.body, loops))
        if inner or not stmt.block.iter_vars:
            yield from inner
        else:
            yield stmt, loops
    elif name == "IfThenElse":
        for each in (stmt.then_case, stmt.else_case):
            if each is not None:
                yield from _blocks(each, loops)


def _tag(loop: Any) -> str:
    """Return the thread axis that a loop is bound to, or "" if it is not bound."""
    return str(loop.thread_binding.thread_tag) if loop.kind == tirx.ForKind.THREAD_BINDING else ""


def _are_own(buffer: Any, writes: Sequence[_Access], reads: Sequence[_Access]) -> bool:
    threads: dict[str, int] = {}
    for access in (*writes, *reads):
        for loop in access.loops:
            if tag := _tag(loop):
                threads[tag] = max(threads.get(tag, 1), _extent(loop))
    shape = [compat.int_value(extent) or _SIZE for extent in buffer.shape]
    try:
        for last in (False, True):
            block = {
                tag: count - 1 if last else 0 for tag, count in threads.items() if tag.startswith("block")
            }
            inside = {tag: count for tag, count in threads.items() if tag not in block}
            own = np.unique(np.concatenate([_elements(a, shape, block, inside) for a in writes]))
            for access in reads:
                if not np.isin(_elements(access, shape, block, inside), own).all():
                    return False
    except _Unknown:
        return True  # not shown to be foreign
    return True


def _extent(loop: Any) -> int:
    return compat.int_value(loop.extent) or _SIZE


def _elements(
    access: _Access, shape: Sequence[int], block: dict[str, int], threads: dict[str, int]
) -> np.ndarray:
    """Return the elements that an access touches, each with its thread, encoded as one number."""
    variables: list[tuple[Any, int]] = []
    values: dict[Any, Any] = {}
    bound: dict[str, Any] = {}  # by thread axis, the outermost loop's variable: inner loops share its value
    used = {var for e in (*access.begin, access.where) for var in compat.free_vars(e)}
    for loop in access.loops:
        tag = _tag(loop)
        if tag in block:
            values[loop.loop_var] = np.int64(min(block[tag], _extent(loop) - 1))
        elif not tag and loop.loop_var not in used:
            values[loop.loop_var] = np.int64(0)  # the same elements in every iteration
        elif not tag or loop.loop_var.same_as(bound.setdefault(tag, loop.loop_var)):
            variables.append((loop.loop_var, _extent(loop)))
    free = [tag for tag in threads if tag not in bound or tag in access.of_all]
    variables += [(tag, threads[tag]) for tag in free]
    inner = [(axis, extent) for axis, extent in enumerate(access.extents) if extent > 1]
    counts = [count for _, count in variables] + [extent for _, extent in inner]
    if math.prod(counts) > MOST_POINTS:
        raise _Unknown
    grids = np.indices(counts).reshape(len(counts), -1) if counts else np.zeros((0, 1), np.int64)
    for (variable, _), grid in zip(variables, grids):
        values[variable] = grid
    for loop in access.loops:
        if tag := _tag(loop):
            values.setdefault(loop.loop_var, values.get(bound.get(tag)))
    at = [np.asarray(_value(index, values)) for index in access.begin]
    for (axis, _), grid in zip(inner, grids[len(variables) :]):
        at[axis] = at[axis] + grid
    number: Any = np.int64(0)
    for tag, count in threads.items():
        thread = values[tag] if tag in free else values[bound[tag]]
        number = number * count + thread
    for index, extent in zip(at, shape):
        number = number * extent + index
    there = np.asarray(_value(access.where, values), bool)
    number, there = np.broadcast_arrays(number, there)
    return number[there]


def _value(e: Any, values: dict[Any, Any]) -> Any:
    """Evaluate an expression at many points at once."""
    name = compat.kind(e)
    if (number := compat.int_value(e)) is not None:
        return np.int64(number)
    if name in _BINARY:
        return _BINARY[name](_value(e.a, values), _value(e.b, values))
    if name == "Cast":
        return _value(e.value, values)
    if name in ("Var", "SizeVar"):
        return values.get(e, _SIZE)
    raise _Unknown
