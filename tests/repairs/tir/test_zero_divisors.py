# SPDX-License-Identifier: Apache-2.0
"""Kernels divide by no extent that is 0: they do nothing where all results are empty, else divide by 1."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import tirx as T

import cuda_emulator
from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.lowering import host_and_devices
from tvm_stitch.repairs.tir.zero_divisors import without_folded_divisors, without_zero_divisors

pytestmark = pytest.mark.usefixtures("children_without_torch")

F32 = "float32"


def difference(emit: Any, x: Any, _: Any) -> Any:
    return [R.subtract(x, x)]


def repetition(emit: Any, x: Any) -> Any:
    """Repeat a row to a length that is no extent of the input."""
    tiles = emit(R.tile(x, [3]))
    return [R.multiply(tiles, emit(R.max(tiles, 0, keepdims=True)))]


def joined(emit: Any, x: Any, y: Any) -> Any:
    """Join tensors to a result that has elements where the extent that it divides by is 0."""
    return [R.concat([emit(R.reshape(emit(R.exp(emit(R.permute_dims(x, [2, 1, 0])))), [-1])), y], 0)]


@T.prim_func(s_tir=True)
def split_rows(a: T.handle, b: T.handle, c: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (48, n - 9), F32)
    flat = T.match_buffer(b, ((n - 9) * 48,), F32)
    other = T.match_buffer(c, (n,), F32)
    with T.sblock("root"):
        for i in range((n - 9) * 48):
            flat[i] = x[i // (n - 9), i % (n - 9)]
        for i in range(n):
            other[i] = T.float32(1)


@T.prim_func(s_tir=True)
def split_rows_after(a: T.handle, b: T.handle, c: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (48, n - 9), F32)
    flat = T.match_buffer(b, ((n - 9) * 48,), F32)
    other = T.match_buffer(c, (n,), F32)
    with T.sblock("root"):
        for i in range((n - 9) * 48):
            flat[i] = x[i // T.max(n - 9, T.int64(1)), i % T.max(n - 9, T.int64(1))]
        for i in range(n):
            other[i] = T.float32(1)


@T.prim_func(s_tir=True)
def rows(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (48, n - 9), F32)
    flat = T.match_buffer(b, ((n - 9) * 48,), F32)
    with T.sblock("root"):
        for i in range((n - 9) * 48):
            flat[i] = x[i // (n - 9), i % (n - 9)]


@T.prim_func(s_tir=True)
def rows_after(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (48, n - 9), F32)
    flat = T.match_buffer(b, ((n - 9) * 48,), F32)
    with T.sblock("root"):
        if n - 9 != T.int64(0):
            for i in range((n - 9) * 48):
                flat[i] = x[i // (n - 9), i % (n - 9)]


@T.prim_func(s_tir=True)
def never_zero(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (48, n + 1), F32)
    flat = T.match_buffer(b, ((n + 1) * 48,), F32)
    with T.sblock("root"):
        for i in range((n + 1) * 48):
            flat[i] = x[i // (n + 1), i % (n + 1)]


@T.prim_func(s_tir=True)
def rest_of_rows(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (48, T.max(n - 2, 0)), F32)
    flat = T.match_buffer(b, (T.max(n - 2, 0) * 48,), F32)
    with T.sblock("root"):
        for i in range(T.max(n - 2, 0) * 48):
            flat[i] = x[i // T.max(n - 2, 0), i % T.max(n - 2, 0)]


@T.prim_func(s_tir=True)
def rest_of_rows_after(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (48, T.max(n - 2, 0)), F32)
    flat = T.match_buffer(b, (T.max(n - 2, 0) * 48,), F32)
    with T.sblock("root"):
        if T.max(n - 2, T.int64(0)) != T.int64(0):
            for i in range(T.max(n - 2, 0) * 48):
                flat[i] = x[
                    i // T.max(T.max(n - 2, 0), T.int64(1)),
                    i % T.max(T.max(n - 2, 0), T.int64(1)),
                ]


@T.prim_func(s_tir=True)
def sixteenths(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (48, n // 16), F32)
    flat = T.match_buffer(b, (n // 16 * 48,), F32)
    with T.sblock("root"):
        for i in range(n // 16 * 48):
            flat[i] = x[i // (n // 16), i % (n // 16)]


@T.prim_func(s_tir=True)
def sixteenths_after(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (48, n // 16), F32)
    flat = T.match_buffer(b, (n // 16 * 48,), F32)
    with T.sblock("root"):
        if n // 16 != T.int64(0):
            for i in range(n // 16 * 48):
                flat[i] = x[i // T.max(n // 16, T.int64(1)), i % T.max(n // 16, T.int64(1))]


@T.prim_func(s_tir=True)
def launched(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (48, n), F32)
    flat = T.match_buffer(b, (n * 48,), F32)
    with T.sblock("root"):
        for _ in range(T.Select(n < 9, T.int64(1), T.int64(0))):
            i = T.launch_thread("blockIdx.x", T.int64(48))
            j = T.launch_thread("threadIdx.x", T.int64(32))
            if i * 32 + j < n * 48:
                flat[i * 32 + j] = x[(i * 32 + j) // n, 480 // n]
        for _ in range(T.Select(n >= 9, T.int64(1), T.int64(0))):
            i = T.launch_thread("blockIdx.x", T.int64(48))
            j = T.launch_thread("threadIdx.x", T.int64(64))
            if i * 64 + j < n * 48:
                flat[i * 64 + j] = x[(i * 64 + j) // n, 480 // n]


@T.prim_func(s_tir=True)
def launched_after(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (48, n), F32)
    flat = T.match_buffer(b, (n * 48,), F32)
    with T.sblock("root"):
        for _ in range(T.Select(n < 9, T.int64(1), T.int64(0))):
            i = T.launch_thread("blockIdx.x", T.int64(48))
            j = T.launch_thread("threadIdx.x", T.int64(32))
            if T.call_pure_extern("static_cast<int64_t>", n, dtype="int64") == T.int64(0):
                T.evaluate(T.thread_return())
            if i * 32 + j < n * 48:
                flat[i * 32 + j] = x[(i * 32 + j) // n, 480 // T.max(n, T.int64(1))]
        for _ in range(T.Select(n >= 9, T.int64(1), T.int64(0))):
            i = T.launch_thread("blockIdx.x", T.int64(48))
            j = T.launch_thread("threadIdx.x", T.int64(64))
            if T.call_pure_extern("static_cast<int64_t>", n, dtype="int64") == T.int64(0):
                T.evaluate(T.thread_return())
            if i * 64 + j < n * 48:
                flat[i * 64 + j] = x[(i * 64 + j) // n, 480 // T.max(n, T.int64(1))]


def test_the_host_of_kernels_divides_by_no_extent_of_zero() -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")

    def host(func: Any) -> str:
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        return host_and_devices(mod, target)[0].script()

    if "// n" not in host(launched):
        faults.needed(False, "tir/zero_divisors.py")
    assert "// n" not in host(without_zero_divisors(launched))


def test_threads_leave_before_they_divide_by_zero() -> None:
    mod = build(repetition, ((symbol("n"),), F32))
    lowered = cuda_emulator.lower(
        mod, tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm"), pipeline("cuda")
    )
    for n in (0, 5):
        x = np.random.default_rng(0).standard_normal(n).astype(F32)
        result = cuda_emulator.run_lowered(lowered, [x])
        assert not result.reports
        if n:
            np.testing.assert_allclose(result.outputs[0], np.tile(x, 3) * x.max(), rtol=1e-6)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (rows, rows_after),
        (launched, launched_after),
        (split_rows, split_rows_after),
        (never_zero, never_zero),
        (rest_of_rows, rest_of_rows_after),
        (sixteenths, sixteenths_after),
    ],
    ids=[
        "all results empty",
        "kernels of a GPU",
        "another result",
        "never 0",
        "0 as a constant",
        "a quotient",
    ],
)
def test_divisors(before: tvm.tirx.PrimFunc, after: tvm.tirx.PrimFunc) -> None:
    tvm.ir.assert_structural_equal(
        without_zero_divisors(before).with_attr("global_symbol", "f"), after.with_attr("global_symbol", "f")
    )


@T.prim_func(s_tir=True)
def mean_of_few(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (n,), F32)
    mean = T.match_buffer(b, (n,), F32)
    with T.sblock("root"):
        for i in range(n):
            if n < 2:
                mean[i] = x[i] / T.Cast(F32, T.max(n - 2, T.int64(0)))


def test_a_floats_divisor_is_not_folded_to_zero() -> None:
    simplify = tvm.tirx.transform.StmtSimplify()
    assert faults.raises(lambda: simplify(tvm.IRModule({"main": mean_of_few})))
    made = simplify(tvm.IRModule({"main": without_folded_divisors(mean_of_few)}))
    assert "/" in made.script()


def specs(body: Callable[..., Any], dtype: str) -> tvm.IRModule:
    n, m = symbol("n"), symbol("m")
    return build(body, ((n // 4, m - 9, 48), dtype), ((70,), dtype), ((n, m), F32))


@pytest.mark.parametrize("sizes", [(9, 9), (3, 9), (3, 12), (16, 9), (33, 10)], ids=str)
@pytest.mark.parametrize(
    ("body", "dtype"), [(difference, "int32"), (joined, F32)], ids=["difference", "joined"]
)
def test_extents_of_zero(body: Callable[..., Any], dtype: str, sizes: tuple[int, int]) -> None:
    mod, (n, m) = specs(lambda emit, x, y, _: body(emit, x, y), dtype), sizes
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm")), tvm.cpu())
    rng = np.random.default_rng(0)
    x, y = rng.integers(-9, 9, (n // 4, m - 9, 48)).astype(dtype), rng.integers(-9, 9, 70).astype(dtype)
    got = vm["main"](*map(tvm.runtime.tensor, (x, y, np.zeros(sizes, F32)))).numpy()
    wanted = x - x if body is difference else np.concatenate([np.exp(x).transpose(2, 1, 0).reshape(-1), y])
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@T.prim_func(s_tir=True)
def two_loops(a: T.handle, b: T.handle):
    n = T.int64()
    x = T.match_buffer(a, (n, 48), F32)
    y = T.match_buffer(b, (n, 48), F32)
    with T.sblock("root"):
        for i in range(n):
            y[i, 0] = x[i, 480 // n]
        for i in range(n):
            y[i, 1] = x[i, 480 // n + 1]


CALL = """
import numpy as np, tvm
from tests.repairs.tir.test_zero_divisors import two_loops
from tvm_stitch.repairs.tir.zero_divisors import without_zero_divisors
func = {repair}(two_loops.with_attr("global_symbol", "main"))
built = tvm.compile(tvm.IRModule({"main": func}), "llvm")
print("compiled", flush=True)
built["main"](tvm.runtime.tensor(np.ones((0, 48), "float32")), tvm.runtime.tensor(np.ones((0, 48), "float32")))
"""


@functools.cache
def dies(repair: str) -> bool:
    """Return whether a division by an extent of 0 ends the process that calls a kernel."""
    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", CALL.replace("{repair}", repair)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "compiled" in run.stdout, run.stderr
    return run.returncode == -signal.SIGFPE


def test_fault() -> None:
    faults.needed(dies(""), "tir/zero_divisors.py")


def test_repair() -> None:
    assert not dies("without_zero_divisors")
    assert dies("")
