# SPDX-License-Identifier: Apache-2.0
"""Kernels store the rows that they compute in place: no second kernel moves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

import tvm_stitch
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import STRICT
from tests.relax.in_place import modules
from tests.relax.in_place.modules import cached, drawn, expected
from tvm_stitch.relax.in_place.stores import _only_stores
from tvm_stitch.relax.in_place.updates import with_results_in_place


def in_place(*args: Any, **options: Any) -> tvm.IRModule:
    return with_results_in_place(cached(*args, **options), {0: 1})


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_no_kernel_moves_rows(tokens: int, target: str) -> None:
    report = tvm_stitch.explain(in_place(tokens), emulated_target() if target == "cuda" else "llvm")
    assert report.left == {} and len(report.kernels) == 2
    rows = tokens * 2 * 32 * 4
    (writing,) = [call for call in report.model.kernels if "multiply" in call.function]
    assert (
        writing.bytes_least == 2 * rows and writing.results[0].bytes == rows
    )  # not those of the whole cache


@pytest.mark.parametrize("tokens", [1, 3])
def test_numbers_in_the_emulator(tokens: int) -> None:
    cache, at, new = drawn(tokens)
    passes = tvm_stitch.relax.pipeline(emulated_target(), STRICT)
    done = run_cuda(
        in_place(tokens), [cache.copy(), at, new], target=emulated_target(), relax_pipeline=passes
    ).check()
    sums, whole = expected(cache, at, new)
    total, updated = done.outputs
    np.testing.assert_allclose(total, sums, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(updated, whole.astype("float32"))
    assert len(done.launches) == 2


@pytest.mark.parametrize("size", [24, 20])
def test_rows_that_no_vector_divides(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of 16 elements do not lie in one row of 24 or 20, which are stored one by one."""
    monkeypatch.setattr(modules, "SIZE", size)
    function = tvm.relax.VirtualMachine(tvm_stitch.compile(in_place(3), "llvm", STRICT), tvm.cpu())["main"]
    cache, at, new = drawn(3)
    sums, whole = expected(cache, at, new)
    total, updated = function(*(tvm.runtime.tensor(each) for each in (cache, at, new)))
    np.testing.assert_allclose(total.numpy(), sums, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(updated.numpy(), whole.astype("float32"))


def test_a_symbolic_number_of_rows() -> None:
    """Positions have a layout with symbols, which are those of their shape. 300 rows are several tasks."""
    mod = in_place(tirx.Var("tokens", "int64"), 400)
    function = tvm.relax.VirtualMachine(tvm_stitch.compile(mod, "llvm", STRICT), tvm.cpu())["main"]
    for tokens in (1, 300):
        cache, at, new = drawn(tokens, 400)
        held = tvm.runtime.tensor(cache)
        total, updated = function(held, tvm.runtime.tensor(at), tvm.runtime.tensor(new))
        sums, whole = expected(cache, at, new)
        np.testing.assert_allclose(total.numpy(), sums, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(updated.numpy(), whole.astype("float32"))
        np.testing.assert_array_equal(held.numpy(), updated.numpy())


@pytest.mark.parametrize("reads", [True, False])
def test_kernels_that_read_their_rows_keep_them(reads: bool) -> None:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def reading(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):  # fmt: skip
        with T.sblock("root"):
            for i in range(4):
                y[i] = x[i]
            for i in range(4):
                y[i] = y[i] + T.float32(1)

    @T.prim_func(s_tir=True)
    def storing(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):  # fmt: skip
        with T.sblock("root"):
            for i in range(4):
                y[i] = x[i]

    func: tirx.PrimFunc = reading if reads else storing
    assert _only_stores(func, func.params[1]) is not reads
    assert not _only_stores(func, func.params[0])  # nothing is stored there
