# SPDX-License-Identifier: Apache-2.0
"""Transposed copies: every element in its place, none beyond, at extents below, at and beyond a tile's side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from tvm_stitch import compat
from tvm_stitch.codegen import builder as B
from tvm_stitch.codegen.cpu.transpose import MatrixRows, side_of, transpose
from tvm_stitch.compat import tir


def compiled(rows: Any, columns: Any, side: int, shape: tuple[int, int], params: list[Any]) -> Any:
    """Return a function of <rows, stride> and <columns, stride> buffers, flat."""
    source, to = (tir.decl_buffer([size], "float32", name) for size, name in zip(shape, "xy"))
    strides = [shape[0] // ROWS, shape[1] // COLUMNS]
    with B.kernel() as body:
        transpose(
            MatrixRows(source, B.i64(0), B.i64(strides[0])),
            MatrixRows(to, B.i64(0), B.i64(strides[1])),
            rows,
            columns,
            side,
            lambda value: value + value,
        )
    func = tir.PrimFunc([*params, source, to], body[0]).with_attrs(
        {"global_symbol": "main", compat.attribute("is_scheduled"): True, "s_tir": True}
    )
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    return tvm.compile(tvm.IRModule({"main": func}), target=target)


ROWS, COLUMNS = 40, 40


@pytest.mark.parametrize("side", [1, 4, 8])
@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (3, 9), (17, 4), (24, 40), (1, 1), (13, 11)])
def test_static(rows: int, columns: int, side: int) -> None:
    run(compiled(rows, columns, side, (ROWS * 45, COLUMNS * 43), []), rows, columns)


@pytest.mark.parametrize("side", [4, 8])
def test_symbolic(side: int) -> None:
    n, m = tir.Var("n", "int64"), tir.Var("m", "int64")
    made = compiled(n, m, side, (ROWS * 45, COLUMNS * 43), [n, m])
    for rows, columns in ((0, 5), (1, 7), (8, 8), (9, 31), (40, 40)):
        run(made, rows, columns, rows, columns)


def run(made: Any, rows: int, columns: int, *numbers: int) -> None:
    x = np.random.default_rng(0).standard_normal(ROWS * 45).astype("float32")
    y = np.full(COLUMNS * 43, np.nan, "float32")
    out = tvm.runtime.tensor(y)
    made["main"](*numbers, tvm.runtime.tensor(x), out)
    found = out.numpy().reshape(COLUMNS, 43)
    wanted = np.full_like(found, np.nan)
    wanted[:columns, :rows] = 2 * x.reshape(ROWS, 45)[:rows, :columns].T
    np.testing.assert_array_equal(found, wanted)


def test_sides_fit() -> None:
    n = tir.Var("n", "int64")
    assert [
        side_of(16, 64, n),
        side_of(16, 14, 100),
        side_of(8, 3, 9),
        side_of(16, 1, 5),
        side_of(4, 0, 5),
    ] == [
        16,
        8,
        2,
        1,
        1,
    ]
