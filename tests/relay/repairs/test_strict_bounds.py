# SPDX-License-Identifier: Apache-2.0
"""Strict bounds under a TVM with Relay: what it makes of conditions holds where they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tir
from tvm.script import tir as T

from tests.relay.codegen import gpu_kernels, kernels
from tests.repairs.needed import needed
from tvm_stitch.repairs.relay.strict_bounds import closed_bounds, with_closed_bounds

CHECKS = {"llvm": kernels.check, "cuda": gpu_kernels.check}


@T.prim_func
def from_one_on(n: T.int64, out: T.Buffer((24,), "int64")) -> None:
    T.func_attr({"global_symbol": "from_one_on", "tir.noalias": True})
    for i, j in T.grid(T.int64(3), T.int64(8)):
        out[i * T.int64(8) + j] = T.Select(T.int64(0) < i * T.int64(8) + j, n, T.int64(-1))


@T.prim_func
def but_the_first(n: T.int64, out: T.Buffer((24,), "int64")) -> None:
    T.func_attr({"global_symbol": "but_the_first", "tir.noalias": True})
    for i, j in T.grid(T.int64(3), T.int64(8)):
        if i * T.int64(8) + j != T.int64(0):
            out[i * T.int64(8) + j] = n
        else:
            out[i * T.int64(8) + j] = T.int64(-1)


@pytest.mark.parametrize("func", [from_one_on, but_the_first], ids=lambda f: f.attrs["global_symbol"])
def test_bounds_on_sums(func: Any) -> None:
    built = tvm.build(closed_bounds(func), target="llvm")
    out = tvm.nd.array(np.zeros(24, "int64"))
    built(5, out)
    np.testing.assert_array_equal(out.numpy(), [-1] + [5] * 23)


I, J = tir.Var("i", "int64"), tir.Var("j", "int64")
SUM = I * 8 + J
CONDITIONS: dict[str, Callable[[int], Any]] = {
    "low < e": lambda n: n < SUM,
    "e > low": lambda n: SUM > n,
    "e < high": lambda n: SUM < n,
    "e - j < high": lambda n: I * 8 - J < n,
    "e + -j < high": lambda n: I * 8 + J * -1 < n,
    "e != n": lambda n: tir.NE(SUM, tir.const(n, "int64")),
    "not e == n": lambda n: tir.Not(tir.EQ(SUM, tir.const(n, "int64"))),
    "not e <= low": lambda n: tir.Not(tir.LE(SUM, tir.const(n, "int64"))),
    "not high >= e": lambda n: tir.Not(tir.GE(tir.const(n, "int64"), SUM)),
    "j > 8 i": lambda n: J > I * 8 + n,
    "8 i > j": lambda n: I * 8 + n > J,
    "within": lambda n: tir.Select(tir.And(n < SUM, SUM < 2 * n + 9), SUM, -SUM) > n,
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("n", [0, 8, 3, 16])
def test_simplified(condition: str, n: int) -> None:
    before = CONDITIONS[condition](n)
    before = before.asobject() if hasattr(before, "asobject") else before
    analyzer = tvm.arith.Analyzer()
    for var, extent in ((I, 4), (J, 8)):
        analyzer.bind(var, tvm.ir.Range.from_min_extent(tir.const(0, "int64"), tir.const(extent, "int64")))
    after = analyzer.simplify(with_closed_bounds(before))
    for i in range(4):
        for j in range(8):
            here = {I: tir.const(i, "int64"), J: tir.const(j, "int64")}
            wanted, got = (
                tvm.arith.Analyzer().rewrite_simplify(tir.stmt_functor.substitute(e, here))
                for e in (before, after)
            )
            assert int(got) == int(wanted), (i, j, after)


def test_what_stays() -> None:
    """The tails of loops, data that one more could overflow, and floats."""
    data = tir.decl_buffer((4,), "int32", "data")
    x = tir.Var("x", "float32")
    least, most = tir.const(-(2**31), "int32"), tir.const(2**31 - 1, "int32")
    element = tir.BufferLoad(data, [tir.const(0, "int32")])
    for e in (SUM < 20, element < tir.BufferLoad(data, [tir.const(1, "int32")]), x > 0.0, most < element):
        assert tvm.ir.structural_equal(with_closed_bounds(e), e)
    assert tvm.ir.structural_equal(
        with_closed_bounds(least < element), tir.LE(tir.const(1 - 2**31, "int32"), element)
    )


@pytest.mark.parametrize("target", CHECKS)
@pytest.mark.parametrize("pads", [((1, 0), (3, 1)), ((1, 1), (1, 1)), ((5, 5), (2, 4))], ids=str)
@pytest.mark.parametrize("shape", [(54, 16), (7, 5), (300, 24)], ids=str)
def test_pads_whose_columns_are_summed(
    target: str, shape: tuple[int, int], pads: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    """On a CPU, the rows of the sums cut the rows of the pad, and divisions of their numbers decide the guards."""
    CHECKS[target]([shape], "float32", *kernels.pad_and_sums(pads))


def is_right(func: Any) -> bool:
    """Return whether a kernel tells the first of 24 elements from all others."""
    out = tvm.nd.array(np.zeros(24, "int64"))
    tvm.build(func, target="llvm")(5, out)
    return np.array_equal(out.numpy(), [-1] + [5] * 23)


def test_fault() -> None:
    needed(not is_right(from_one_on), "relay/strict_bounds.py")


def test_repair() -> None:
    assert is_right(closed_bounds(from_one_on))
    assert not is_right(from_one_on)
