# SPDX-License-Identifier: Apache-2.0
"""Guards with lower bounds under a TVM with Relay: indices under them stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay
from tvm.script import tir as T

from tests.relay.codegen import gpu_kernels, kernels
from tests.relay.codegen.gpu_kernels import check
from tests.repairs.needed import needed
from tvm_stitch.repairs.relay.lower_bounds import hidden_lower_bounds

CHECKS = {"llvm": kernels.check, "cuda": gpu_kernels.check}


@T.prim_func
def shifted(x: T.Buffer((16,), "int64"), at: T.Buffer((1,), "int64"), out: T.Buffer((8,), "int64")) -> None:
    T.func_attr({"global_symbol": "shifted", "tir.noalias": True})
    for i in T.serial(T.int64(2)):
        for j in T.serial(T.int64(4)):
            out[i * 4 + j] = T.if_then_else(
                T.int64(1) <= at[0] * T.int64(8) + i * T.int64(4) + j
                and at[0] * T.int64(8) + i * T.int64(4) + j < T.int64(17),
                x[at[0] * T.int64(8) + i * T.int64(4) + j - T.int64(1)],
                T.int64(-1),
            )


@T.prim_func
def shifted_by_statement(
    x: T.Buffer((16,), "int64"), at: T.Buffer((1,), "int64"), out: T.Buffer((8,), "int64")
) -> None:
    T.func_attr({"global_symbol": "shifted_by_statement", "tir.noalias": True})
    for i in T.serial(T.int64(2)):
        for j in T.serial(T.int64(4)):
            out[i * 4 + j] = T.int64(-1)
            if T.int64(1) <= at[0] * T.int64(8) + i * T.int64(4) + j:
                if at[0] * T.int64(8) + i * T.int64(4) + j < T.int64(17):
                    out[i * 4 + j] = x[at[0] * T.int64(8) + i * T.int64(4) + j - T.int64(1)]


@pytest.mark.parametrize("func", [shifted, shifted_by_statement], ids=lambda f: f.attrs["global_symbol"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_bounds_on_sums_with_what_was_loaded(func: Any, at: int) -> None:
    built = tvm.build(hidden_lower_bounds(func), target="llvm")
    x = np.arange(100, 116)
    out = tvm.nd.array(np.zeros(8, "int64"))
    built(tvm.nd.array(x), tvm.nd.array(np.array([at])), out)
    expected = np.pad(x, (1, 7), constant_values=-1)[8 * at : 8 * at + 8]
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize("statement", [False, True])
@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("i < 3", False), ("i + j <= 3", False), ("3 > i", False), ("i < 3 and j < 2", False),
        ("i == 3", False), ("i < 3 or j > 1", False),
        ("1 <= i", True), ("i > 1", True), ("i + 2 >= j", True), ("i < j", True), ("i < 3 and 2 < j", True),
    ],
)  # fmt: skip
def test_which_conditions_are_hidden(text: str, hidden: bool, statement: bool) -> None:
    i, j = tvm.tir.Var("i", "int64"), tvm.tir.Var("j", "int64")
    operands = text.replace(" or ", " and ").split(" and ")
    first, *rest = [eval(o, {"i": i, "j": j}) for o in operands]
    join = tvm.tir.Or if " or " in text else tvm.tir.And
    condition = join(first, *rest) if rest else first
    if statement:
        body = tvm.tir.IfThenElse(condition, tvm.tir.Evaluate(i), tvm.tir.Evaluate(j))
    else:
        body = tvm.tir.Evaluate(tvm.tir.if_then_else(condition, i, j))
    func = tvm.tir.PrimFunc([i, j], body)
    done = hidden_lower_bounds(func)
    assert ("likely" in done.script()) is hidden
    assert tvm.ir.structural_equal(done, func) is not hidden


@pytest.mark.parametrize("pads", [((1, 0), (3, 1)), ((0, 2), (1, 3)), ((5, 5), (2, 4))], ids=str)
@pytest.mark.parametrize("shape", [(54, 160), (7, 5), (300, 24)], ids=str)
def test_sums_of_the_columns_of_a_pad(
    shape: tuple[int, int], pads: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    """Blocks have tiles of columns, and the tile's number, which is loaded, is part of the guards of pads."""
    kernel = check([shape], "float32", *kernels.pad_and_sums(pads))
    if shape == (54, 160):
        assert kernel.plan.grid_wide
        assert "tile[" in kernel.kernels


@pytest.mark.parametrize("target", CHECKS)
@pytest.mark.parametrize("shape", [(8, 4), (3, 5), (2, 257), (1, 16)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_concats_of_concats(target: str, shape: tuple[int, int], axis: int) -> None:
    def body(x: Any) -> Any:
        inner = relay.abs(relay.concatenate([x, x, x], axis))
        return relay.concatenate([inner, inner, inner], axis)

    def reference(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.abs(x)] * 9, axis)

    CHECKS[target]([shape], "float32", body, reference)


@pytest.mark.parametrize("target", CHECKS)
def test_pads_of_concats_of_slices(target: str) -> None:
    def body(x: Any) -> Any:
        part = relay.strided_slice(x, [0, 4], [8, 12])
        joined = relay.exp(relay.concatenate([part, x, part], 1))
        return relay.nn.pad(relay.nn.pad(joined, ((0, 0), (4, 0))), ((0, 0), (8, 4)))

    def reference(x: np.ndarray) -> np.ndarray:
        joined = np.exp(np.concatenate([x[:, 4:12], x, x[:, 4:12]], 1))
        return np.pad(np.pad(joined, ((0, 0), (4, 0))), ((0, 0), (8, 4)))

    CHECKS[target]([(8, 16)], "float32", body, reference)


def is_right(func: Any) -> bool:
    """Return whether a kernel gives elements 7 to 14 of ``x``, its second group of eight."""
    x, out = np.arange(100, 116), tvm.nd.array(np.zeros(8, "int64"))
    tvm.build(func, target="llvm")(tvm.nd.array(x), tvm.nd.array(np.array([1])), out)
    return np.array_equal(out.numpy(), x[7:15])


def test_fault() -> None:
    needed(not is_right(shifted), "relay/lower_bounds.py")


def test_repair() -> None:
    assert is_right(hidden_lower_bounds(shifted))
    assert not is_right(shifted)
