# SPDX-License-Identifier: Apache-2.0
"""Extents of parameters tell TVM's simplifier nothing that is not so."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op
from tvm.script import tirx as T

import tvm_stitch
from cuda_emulator import lower, run_lowered
from tests.repairs import faults
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.tir.extent_bounds import sound_extents


@T.prim_func(private=True, s_tir=True)
def tripled(x: T.handle, n: T.int64, y: T.handle):
    a = T.match_buffer(x, (n * 3 - 20,), "float32")
    b = T.match_buffer(y, (1,), "float32")
    b[0] = a[T.max(n, T.int64(12))]


@T.prim_func(private=True, s_tir=True)
def tripled_as_a_sum(x: T.handle, n: T.int64, y: T.handle):
    a = T.match_buffer(x, (n * 2 + n - 20,), "float32")
    b = T.match_buffer(y, (1,), "float32")
    b[0] = a[T.max(n, T.int64(12))]


@T.prim_func(private=True, s_tir=True)
def others(x: T.handle, n: T.int64, m: T.int64, y: T.handle):
    a = T.match_buffer(x, (n - 9, n * 3, n * 3 + 5, (n - 9) * 3, n * m - 9, n + m - 9), "float32")
    b = T.match_buffer(y, (1,), "float32")
    b[0] = a[0, 0, 0, 0, 0, 0]


def _keeps_the_maximum(func: tirx.PrimFunc) -> bool:
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return "T.max(n, T.int64(12))" in tirx.transform.StmtSimplify()(mod)["main"].script()


def test_multiples_less_a_constant_become_sums() -> None:
    changed = sound_extents(tripled)
    tvm.ir.assert_structural_equal(changed, tripled_as_a_sum)
    assert _keeps_the_maximum(changed)
    assert not _keeps_the_maximum(tripled), "TVM draws the right conclusion now: extent_bounds is not needed"


def test_other_extents_stay() -> None:
    assert sound_extents(others) is others
    assert sound_extents(tripled_as_a_sum) is tripled_as_a_sum


def copies(count: int, less: int) -> tvm.IRModule:
    """Rows without the first ones, joined ``count`` times."""
    builder = relax.BlockBuilder()
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n - less], "float32"))
    y = relax.Var("y", relax.TensorType([n], "float32"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            joined = builder.emit_output(op.exp(op.concat([x] * count, 0)))
        builder.emit_func_output(joined)
    return builder.get()


def expected(count: int, less: int, n: int) -> tuple[list[np.ndarray], np.ndarray]:
    x = np.linspace(-1, 1, n - less).astype("float32")
    return [x, np.zeros(n, "float32")], np.exp(np.concatenate([x] * count).astype("float64"))


@pytest.mark.parametrize(("count", "less"), [(2, 9), (3, 9), (3, 30), (5, 17)])
def test_all_elements_are_written_on_llvm(count: int, less: int) -> None:
    executable = tvm_stitch.compile(copies(count, less), "llvm")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for n in (less, less + 1, less + 3, less * 2, less * count + 40):
        inputs, wanted = expected(count, less, n)
        got = machine["main"](*[tvm.runtime.tensor(a) for a in inputs]).numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_all_elements_are_written_on_cuda() -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    lowered = lower(copies(3, 9), target, pipeline(target))
    for n in (10, 12, 20, 200):
        inputs, wanted = expected(3, 9, n)
        run = run_lowered(lowered, inputs).check()
        np.testing.assert_allclose(run.outputs[0], wanted, rtol=1e-6)


def test_fault() -> None:
    faults.needed(not _keeps_the_maximum(tripled), "tir/extent_bounds.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_right() -> bool:
        inputs, wanted = expected(3, 9, 10)
        return np.allclose(faults.on_cpu(copies(3, 9), inputs, faults.ours(faults.LLVM))[0], wanted)

    assert is_right()
    monkeypatch.setattr(faults.module_of("codegen.emit"), "sound_extents", lambda func: func)
    assert not is_right()
