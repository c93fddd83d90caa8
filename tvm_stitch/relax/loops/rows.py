# SPDX-License-Identifier: Apache-2.0
"""Rows of a tensor in a loop: one row is read or written in each step, at a number that the host knows.

Rows are written in place, into memory that the loop allocates once. A new tensor for each step would copy all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op as R
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ... import compat


def row(builder: relax.BlockBuilder, x: relax.Expr, number: Any) -> relax.Var:
    """Emit the row of a tensor at an index of its first axis."""

    def read(source: Any, at_row: Any) -> Any:
        return te.compute(source.shape[1:], lambda *at: source[(at_row, *at)], name="row")

    return builder.emit_te(read, x, _expr(number), primfunc_name_hint="row")


def scalar(builder: relax.BlockBuilder, number: Any, dtype: str = "int64") -> relax.Var:
    """Emit a tensor without axes that holds a number of the host."""

    def made(value: Any) -> Any:
        return te.compute((), lambda: tirx.Cast(dtype, value) if dtype != "int64" else value, name="number")

    return builder.emit_te(made, _expr(number), primfunc_name_hint="number")


def empty(builder: relax.BlockBuilder, shape: Sequence[Any], dtype: str) -> relax.Var:
    """Emit memory for rows. Every element must be written before it is read."""
    return builder.emit(R.builtin.alloc_tensor(relax.ShapeExpr(list(shape)), dtype, 0))


def with_row(builder: relax.BlockBuilder, y: relax.Expr, value: relax.Expr, number: Any) -> relax.Var:
    """Emit the write of a row in place and return the tensor. Nothing may read ``y`` under its old name."""
    sizes, dtype = list(y.ty.shape.values), str(y.ty.dtype.dtype)
    own = {
        symbol: tirx.Var(symbol.name, "int64")
        for size in sizes
        for symbol in tirx.analysis.undefined_vars(_expr(size))
    }
    shape = [compat.substitute(_expr(size), own) for size in sizes]
    func = builder.add_func(_writing(shape, dtype), "with_row")
    return builder.emit(R.call_tir_inplace(func, relax.Tuple([y, value, _expr(number)]), [0], y.ty))


def _expr(size: Any) -> Any:
    return tirx.const(size, "int64") if isinstance(size, int) else size


def _writing(shape: list[Any], dtype: str) -> Any:
    with IRBuilder() as made, T.prim_func():
        T.func_name("with_row")
        T.func_attr({"tirx.noalias": True, "s_tir": True})
        y = T.arg("y", tirx.decl_buffer(shape, dtype, "y"))
        value = T.arg("value", tirx.decl_buffer(shape[1:], dtype, "value"))
        number = T.arg("number", tirx.Var("number", "int64"))
        extents = shape[1:] or [tirx.const(1, "int64")]  # a block needs an axis
        with T.sblock("root"):
            T.reads([])
            T.writes([])
            with T.grid(*extents) as loops, T.sblock("written"):
                loops = [loops] if isinstance(loops, relax.Var) else list(loops)
                axes = [T.axis.spatial(extent, var) for extent, var in zip(extents, loops, strict=True)]
                at = axes[: len(shape) - 1]
                T.reads(value[tuple(at)])
                T.writes(y[(number, *at)])
                T.buffer_store(y, value[tuple(at)], [number, *at])
    return made.get().without_attr("global_symbol")
