# SPDX-License-Identifier: Apache-2.0
"""Extents with choices, shifts and masks are rewritten. Others are left to TVM without its fusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.legalize.plain_extents import PlainExtents


def number(value: int) -> Any:
    return tirx.const(value, "int64")


def rounded(n: Any) -> Any:
    return tirx.Cast("int64", tirx.ceil(tirx.Cast("float32", n) * tirx.const(0.5, "float32")))


PLAIN: dict[str, tuple[Callable[[Any], Any], Callable[[int], int]]] = {
    "choice": (lambda n: tirx.if_then_else(n > 3, n // 2, n), lambda n: n // 2 if n > 3 else n),
    "choice of choices": (
        lambda n: tirx.if_then_else(n > 3, tirx.if_then_else(n > 5, number(2), n), n + 1),
        lambda n: 2 if n > 5 else n if n > 3 else n + 1,
    ),
    "shift to the right": (lambda n: tirx.shift_right(n + 2, number(1)), lambda n: (n + 2) >> 1),
    "shift to the left": (lambda n: tirx.shift_left(n, number(2)), lambda n: n << 2),
    "low bits": (lambda n: tirx.bitwise_and(n, number(3)) + 1, lambda n: (n & 3) + 1),
}
UNUSUAL: dict[str, tuple[Callable[[Any], Any], Callable[[int], int]]] = {
    "rounded": (rounded, lambda n: -(-n // 2)),
    "some bits": (lambda n: tirx.bitwise_and(n, number(6)) + 1, lambda n: (n & 6) + 1),
}


def module(extent: Callable[[Any], Any]) -> tvm.IRModule:
    """Build a tensor of a derived extent, and one whose extent is a symbol, each with three operators."""
    n = symbol()

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.broadcast_to(emit(R.sum(x, -1, keepdims=True)), relax.ShapeExpr([4, extent(n)])))
        y = emit(R.sum(emit(R.divide(emit(R.exp(y)), relax.const(2.0))), -1, keepdims=True))
        return R.add(emit(R.tanh(x)), y)

    return build(body, ((4, n), "float32"))


@pytest.mark.parametrize("name", [*PLAIN, *UNUSUAL])
def test_numbers(name: str) -> None:
    extent, of = (PLAIN | UNUSUAL)[name]
    recorder = Recorder()
    passes = pipeline(faults.LLVM, recorder=recorder)
    vm = relax.VirtualMachine(tvm.compile(module(extent), faults.LLVM, relax_pipeline=passes), tvm.cpu())
    assert "all" not in recorder.declined
    assert bool(recorder.declined) == (name in UNUSUAL)
    for n in (2, 5, 9):
        x = np.random.default_rng().uniform(-0.1, 0.1, (4, n)).astype("float32")
        y = np.exp(x.astype("float64").sum(-1, keepdims=True)) / 2
        got = vm["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(got, np.tanh(x) + y * of(n), rtol=1e-5, atol=1e-6)


def test_a_side_that_may_trap_stays_a_choice() -> None:
    m = symbol("m")
    mod = module(lambda n: tirx.if_then_else(n > 0, m // n, number(1)))
    tvm.ir.assert_structural_equal(PlainExtents()(mod), mod)


def test_static_functions_stay_as_they_are() -> None:
    mod = build(lambda emit, x: R.exp(x), ((4, 6), "float32"))
    assert PlainExtents()(mod)["main"].same_as(mod["main"])


def fused(passes: list[Any]) -> tvm.IRModule:
    passes = [*passes, relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    return tvm.transform.Sequential([*passes, relax.transform.FuseOps()])(module(PLAIN["choice"][0]))


def test_fault() -> None:
    faults.needed(faults.raises(lambda: fused([])), "legalize/plain_extents.py")


def test_repair() -> None:
    assert fused([PlainExtents()])
    assert faults.raises(lambda: fused([]))


def test_the_last_resort_has_no_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that fails in this package, and in TVM's fusion too, compiles as ``tvm.compile`` compiles it."""
    monkeypatch.setattr(faults.module_of("relax.pass_table"), "FuseRest", relax.transform.FuseOps)
    mod = module(UNUSUAL["rounded"][0])
    assert faults.raises(lambda: tvm.compile(mod, faults.LLVM, relax_pipeline=faults.stock(faults.LLVM)))
    assert tvm_stitch.compile(mod, faults.LLVM)
