# SPDX-License-Identifier: Apache-2.0
"""The function that writes rows into a tensor, at positions that another tensor has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ... import compat


def rows_written(y: relax.Type, positions: relax.Type, rows: relax.Type, order: Sequence[int]) -> tirx.PrimFunc:
    """Return a function of three tensors that writes the rows into the first one, in place.

    It does as ``scatter_nd``: the last axis of the positions has the indices of one row along the first axes. Rows at
    positions outside the tensor are left out. Two rows at one position leave either of them there.

    Args:
        y: the type of the tensor.
        positions: the type of the positions, integers.
        rows: the type of the rows. Their first axes are those of the positions, without the last.
        order: for each axis of the tensor as ``scatter_nd`` sees it, the axis of the tensor in memory.
    """
    own = _OwnExtents()
    shapes = [[own.of(size) for size in ty.shape.values] for ty in (y, positions, rows)]
    depth, lead = int(shapes[1][-1]), len(shapes[1]) - 1
    index_type = str(positions.dtype.dtype)
    with IRBuilder() as made, T.prim_func():
        T.func_name("rows_written")
        T.func_attr({"tirx.noalias": True, "s_tir": True})
        into = T.arg("y", tirx.decl_buffer(shapes[0], str(y.dtype.dtype), "y"))
        at = T.arg("positions", tirx.decl_buffer(shapes[1], index_type, "positions"))
        new = T.arg("rows", tirx.decl_buffer(shapes[2], str(rows.dtype.dtype), "rows"))
        extents = shapes[2] or [tirx.const(1, "int64")]  # a block needs an axis
        with T.sblock("root"):
            T.reads([])
            T.writes([])
            with T.grid(*extents) as loops, T.sblock("written"):
                loops = [loops] if isinstance(loops, tirx.Var) else list(loops)
                axes = [T.axis.spatial(extent, var) for extent, var in zip(extents, loops, strict=True)]
                axes = axes[: len(shapes[2])]
                found = [tirx.Cast("int64", at[(*axes[:lead], k)]) for k in range(depth)]
                index: list[Any] = [None] * len(shapes[0])
                for axis, value in zip(order, [*found, *axes[lead:]], strict=True):
                    index[axis] = value
                bounds = [
                    tirx.all(0 <= value, value < shapes[0][axis]) for axis, value in zip(order, found)
                ]
                T.reads(at[(*axes[:lead], slice(0, depth))], new[tuple(axes)])
                T.writes(into[tuple(slice(0, size) for size in shapes[0])])
                with T.If(reduce(tirx.And, bounds)), T.Then():
                    T.buffer_store(into, new[tuple(axes)], index)
    return made.get().without_attr("global_symbol")


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
