# SPDX-License-Identifier: Apache-2.0
"""Slices of symbolic extents are NumPy's at every length, and their extents are simple."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

import tvm_stitch
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.legalize.symbolic_slices import SYMBOLIC_SLICES

RNG = np.random.default_rng()
HALF: dict[str, tuple[Callable[[Any], tuple[Any, Any, int]], Callable[[int], slice]]] = {
    "first half": (lambda n: (0, n // 2, 1), lambda n: slice(n // 2)),
    "second half": (lambda n: (n // 2, n, 1), lambda n: slice(n // 2, None)),
    "all but the last": (lambda n: (0, n - 1, 1), lambda n: slice(max(n - 1, 0))),
    "counted from the end where short": (lambda n: (0, n - 5, 1), lambda n: slice(n - 5)),
    "two such bounds": (lambda n: (n - 5, n - 2, 2), lambda n: slice(n - 5, n - 2, 2)),
    "the last three": (lambda n: (-3, n, 1), lambda n: slice(-3, None)),
    "nothing": (lambda n: (5, 3, 1), lambda n: slice(5, 3)),
    "every second from 3": (lambda n: (3, n, 2), lambda n: slice(3, None, 2)),
    "reversed": (lambda n: (n - 1, -n - 1, -1), lambda n: slice(None, None, -1)),
    "backwards by two": (lambda n: (5, 1, -2), lambda n: slice(5, 1, -2)),
    "backwards from the middle": (lambda n: (n // 2, 0, -1), lambda n: slice(n // 2, 0, -1)),
    "longer than the tensor": (lambda n: (0, n + 3, 1), lambda n: slice(None)),
}


def module(name: str, extent: Any) -> tvm.IRModule:
    def body(emit: Any, x: Any) -> Any:
        begin, end, step = HALF[name][0](extent)
        part = emit(R.strided_slice(x, [1], [begin], [end], [step]))
        return R.divide(emit(R.exp(part)), relax.const(2.0))

    return build(body, ((4, extent), "float32"))


def draw(n: int) -> np.ndarray:
    return RNG.standard_normal((4, n)).astype("float32")


@pytest.mark.parametrize("name", HALF)
def test_numbers(name: str) -> None:
    mod = module(name, symbol())
    vm = relax.VirtualMachine(tvm_stitch.compile(mod, faults.LLVM), tvm.cpu())
    for n in (0, 1, 2, 3, 4, 5, 6, 7, 13, 64):
        x = draw(n)
        wanted = np.exp(x[:, HALF[name][1](n)].astype("float64")) / 2
        np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), wanted, rtol=2e-6)
    assert count_kernels(mod, faults.LLVM, pipeline(faults.LLVM)).total == (name != "nothing")


@pytest.mark.parametrize("name", ["first half", "counted from the end where short", "reversed"])
def test_numbers_on_cuda(name: str) -> None:
    target, x = emulated_target(), draw(9)
    run = run_cuda(module(name, symbol()), [x], target=target, relax_pipeline=pipeline(target)).check()
    wanted = np.exp(x[:, HALF[name][1](9)].astype("float64")) / 2
    np.testing.assert_allclose(run.outputs[0], wanted, rtol=2e-6)


@pytest.mark.parametrize(
    ("name", "extent"),
    [
        ("first half", lambda n: n // 2),
        ("all but the last", lambda n: tirx.max(n - 1, 0)),
        ("reversed", lambda n: n),
        ("longer than the tensor", lambda n: n),
    ],
)
def test_extents_are_simple(name: str, extent: Callable[[Any], Any]) -> None:
    n = symbol()
    made = relax.transform.LegalizeOps(SYMBOLIC_SLICES)(module(name, n))
    tvm.ir.assert_structural_equal(made["main"].ret_ty.shape.values[1], extent(n))


def test_slices_within_bounds_are_not_counted_from_the_end() -> None:
    n = symbol()
    mod = build(
        lambda emit, x: R.strided_slice(x, [1], [n - 5], [n], assume_inbound=True), ((4, n), "float32")
    )
    made = relax.transform.LegalizeOps(SYMBOLIC_SLICES)(mod)
    assert int(made["main"].ret_ty.shape.values[1]) == 5


def test_static_slices_are_tvms() -> None:
    mod = module("all but the last", 7)
    tvm.ir.assert_structural_equal(
        relax.transform.LegalizeOps(SYMBOLIC_SLICES)(mod), relax.transform.LegalizeOps()(mod)
    )


def fused(table: dict[str, Any]) -> Any:
    passes = [relax.transform.LegalizeOps(table), relax.transform.AnnotateTIROpPattern()]
    return tvm.transform.Sequential([*passes, relax.transform.FuseOps()])(module("first half", symbol()))


def test_fault() -> None:
    faults.needed(faults.raises(lambda: fused({})), "legalize/symbolic_slices.py")


def test_repair() -> None:
    assert fused(SYMBOLIC_SLICES)
    assert faults.raises(lambda: fused({}))
