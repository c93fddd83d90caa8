# SPDX-License-Identifier: Apache-2.0
"""Takes become what TVM makes of them, and TVM does not warn of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build, prim_funcs, symbol
from tests.repairs import faults
from tvm_stitch.repairs.legalize.take import TAKES, LegalizeTakes, stock_pipeline

F32, I64 = "float32", "int64"


def take(axis: int | None, data: Any = (5, 7), indices: Any = (2, 3), mode: str = "fast") -> tvm.IRModule:
    return build(lambda emit, x, i: R.take(x, i, axis=axis, mode=mode), (data, F32), (indices, I64))


CASES = [take(0), take(1), take(-1), take(0, (5,)), take(1, indices=()),
         take(0, (symbol(), 7)), take(0, indices=(symbol("m"),))]  # fmt: skip


@pytest.mark.parametrize("mod", CASES)
def test_the_function_is_tvms(mod: tvm.IRModule, capfd: pytest.CaptureFixture[str]) -> None:
    (ours,) = prim_funcs(relax.transform.LegalizeOps(TAKES)(mod)).values()
    assert "Fast mode segfaults" not in capfd.readouterr().err
    (theirs,) = prim_funcs(relax.transform.LegalizeOps()(mod)).values()
    assert "Fast mode segfaults" in capfd.readouterr().err, "it does not warn any more: this file can go"
    tvm.ir.assert_structural_equal(ours, theirs)


@pytest.mark.parametrize("mode", ["clip", "wrap", "nan"])
def test_other_modes_stay_tvms(mode: str) -> None:
    same(take(0, mode=mode))


def test_takes_without_an_axis_stay_tvms() -> None:
    same(take(None, (5,)))


def same(mod: tvm.IRModule) -> None:
    tvm.ir.assert_structural_equal(
        relax.transform.LegalizeOps(TAKES)(mod), relax.transform.LegalizeOps()(mod)
    )
    tvm.ir.assert_structural_equal(LegalizeTakes()(mod), mod)


def test_only_takes_are_legalized() -> None:
    def body(emit: Any, x: Any, i: Any) -> list[Any]:
        return [emit(R.exp(emit(R.take(x, i, axis=0)))), emit(R.take(x, i, axis=0))]

    mod = LegalizeTakes()(build(body, ((5, 7), F32), ((2,), I64)))
    text = mod.script()
    assert "R.take" not in text and "R.exp" in text and len(prim_funcs(mod)) == 1
    relax.analysis.well_formed(mod)


def test_models_compile_without_the_warning(capfd: pytest.CaptureFixture[str]) -> None:
    def body(emit: Any, x: Any, i: Any) -> Any:
        return emit(R.nn.softmax(emit(R.take(x, i, axis=0)), -1))

    mod = build(body, ((50, 16), F32), ((4,), I64))
    x, i = np.random.default_rng(0).standard_normal((50, 16)).astype(F32), np.array([3, 0, 49, 3])
    for built in (
        tvm_stitch.compile(mod, "llvm"),
        tvm.compile(mod, "llvm", relax_pipeline=stock_pipeline("llvm")),
    ):
        vm = relax.VirtualMachine(built, tvm.cpu())
        exp = np.exp(x[i] - x[i].max(-1, keepdims=True))
        result = vm["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(i)).numpy()
        np.testing.assert_allclose(result, exp / exp.sum(-1, keepdims=True), rtol=1e-5)
    assert capfd.readouterr().err == ""


def is_warned_of(table: dict[str, Any] | None, capfd: pytest.CaptureFixture[str]) -> bool:
    capfd.readouterr()
    relax.transform.LegalizeOps(table)(take(0))
    return "Fast mode segfaults" in capfd.readouterr().err


def test_fault(capfd: pytest.CaptureFixture[str]) -> None:
    faults.needed(is_warned_of(None, capfd), "legalize/take.py")


def test_repair(capfd: pytest.CaptureFixture[str]) -> None:
    assert not is_warned_of(TAKES, capfd)
    assert is_warned_of({}, capfd)
