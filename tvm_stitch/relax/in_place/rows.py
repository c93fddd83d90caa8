# SPDX-License-Identifier: Apache-2.0
"""The function that writes rows into a tensor, at positions that another tensor has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import reduce
from math import prod
from typing import Any

import tvm_ffi
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ... import compat
from ...graph.dtype import item_bytes

ROWS_ATTR = "tvm_stitch.rows_written"
"""Attribute of such a function: the fields of its :class:`RowPositions`."""

WRITTEN_ATTR = "tvm_stitch.bytes_written"
"""Attribute of a function that writes a part of a tensor in place: for each such result the bytes, or -1 if unknown."""


def written_bytes(shape: Sequence[Any], dtype: str) -> int:
    """Return the size of rows in bytes, or -1 if it depends on symbols."""
    sizes = [compat.int_value(extent) for extent in shape]
    known = [size for size in sizes if size is not None]
    return prod(known) * item_bytes(dtype) if len(known) == len(sizes) else -1


@dataclass(frozen=True)
class RowPositions:
    """The place of each element of rows in a tensor. It is that of ``scatter_nd``.

    Attributes:
        order: for each axis of the tensor as ``scatter_nd`` sees it, the axis of the tensor in memory.
        lead: the number of leading axes of the rows. There is a position for each combination.
        depth: the number of indices of a position, which are the last axis of the positions.
        wraps: True if there is one index, without an axis of its own, and negative ones count from the end.
    """

    order: tuple[int, ...]
    lead: int
    depth: int
    wraps: bool = False

    @staticmethod
    def of(func: Any) -> RowPositions | None:
        """Return the positions of a function of :func:`rows_written`, or None for another one."""
        numbers = func.attrs.get(ROWS_ATTR) if func.attrs else None
        if numbers is None:
            return None
        lead, depth, wraps, *order = (int(number) for number in numbers)
        return RowPositions(tuple(order), lead, depth, bool(wraps))

    @property
    def numbers(self) -> list[int]:
        """The fields as the function's attribute has them."""
        order, lead, depth, wraps = astuple(self)
        return [lead, depth, int(wraps), *order]

    def index(self, at: tirx.Buffer, extents: Sequence[Any], axes: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return the index of an element in the tensor, and the condition that it lies in the tensor.

        Args:
            at: the positions.
            extents: of the tensor.
            axes: the element's index in the rows.
        """
        lead = list(axes[: self.lead])
        if self.wraps:
            index = tirx.Cast("int64", at[tuple(lead)])
            starts = [tirx.Select(index < 0, index + extents[self.order[0]], index)]
        else:
            starts = [tirx.Cast("int64", at[(*lead, k)]) for k in range(self.depth)]
        whole: list[Any] = [None] * len(extents)
        for axis, value in zip(self.order, [*starts, *axes[self.lead :]], strict=True):
            whole[axis] = value
        bounds = [tirx.all(0 <= value, value < extents[axis]) for axis, value in zip(self.order, starts)]
        return whole, reduce(tirx.And, bounds)


def rows_written(y: relax.Type, positions: relax.Type, rows: relax.Type, at: RowPositions) -> tirx.PrimFunc:
    """Return a function of three tensors that writes the rows into the first one, in place.

    Rows at positions outside the tensor are left out. Two rows at one position leave either of them there.

    Args:
        y: the type of the tensor.
        positions: the type of the positions, integers.
        rows: the type of the rows. Their first axes are those of the positions, without that of the indices.
        at: the place of each element.
    """
    own = _OwnExtents()
    shapes = [[own.of(size) for size in ty.shape.values] for ty in (y, positions, rows)]
    with IRBuilder() as function, T.prim_func():
        T.func_name("rows_written")
        size = written_bytes(shapes[2], str(rows.dtype.dtype))
        T.func_attr({"tirx.noalias": True, "s_tir": True, ROWS_ATTR: at.numbers, WRITTEN_ATTR: [size]})
        buffers = [
            T.arg(name, tirx.decl_buffer(shape, str(ty.dtype.dtype), name))
            for name, shape, ty in zip(("y", "positions", "rows"), shapes, (y, positions, rows), strict=True)
        ]
        into, known, new = buffers
        with T.sblock("root"):
            T.reads([])
            T.writes([])
            with T.grid(*shapes[2]) as loops, T.sblock("written"):
                loops = [loops] if isinstance(loops, tirx.Var) else list(loops)
                axes = [T.axis.spatial(extent, var) for extent, var in zip(shapes[2], loops, strict=True)]
                index, inside = at.index(known, shapes[0], axes)
                T.reads(known[tuple(slice(0, size) for size in shapes[1])], new[tuple(axes)])
                T.writes(into[tuple(slice(0, size) for size in shapes[0])])
                with T.If(inside), T.Then():
                    T.buffer_store(into, new[tuple(axes)], index)
    return function.get().without_attr("global_symbol")


class _OwnExtents:
    """Gives each extent of a caller that is no number a symbol of the function, equal ones the same."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, tirx.Var]] = []

    def of(self, extent: Any) -> Any:
        number = compat.int_value(extent)
        if number is not None:
            return tirx.const(number, "int64")
        for known, symbol in self.found:
            if tvm_ffi.structural_equal(known, extent):
                return symbol
        self.found.append((extent, tirx.Var(f"n{len(self.found)}", "int64")))
        return self.found[-1][1]
