# SPDX-License-Identifier: Apache-2.0
"""Parallel loops of compiled modules run in this package's launcher, in this process and in libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import tirx as T

import tvm_stitch
from tests.graph.helpers import build
from tvm_stitch import StitchConfig
from tvm_stitch.compute.cpu.launch import launcher
from tvm_stitch.relax.lowering.launch_regions import LaunchRegions

LLVM = tvm.target.Target("llvm")
NEEDED = pytest.mark.skipif(launcher.CODE.needs() is not None, reason="no C++ compiler")


@I.ir_module
class Loops:
    @T.prim_func
    def alone(A: T.Buffer((96,), "float32"), B: T.Buffer((96,), "float32")):
        T.func_attr({"global_symbol": "alone"})
        for i in T.parallel(96):
            B[i] = A[i] + T.float32(1)

    @T.prim_func
    def meeting(A: T.Buffer((96,), "float32"), B: T.Buffer((96,), "float32")):
        T.func_attr({"global_symbol": "meeting"})
        with T.attr(T.int32(0), "pragma_parallel_launch_point", T.int32(1)):
            for step in range(3):
                with T.attr(T.int32(0), "pragma_parallel_barrier_when_finish", T.int32(1)):
                    for i in T.parallel(96):
                        B[i] = T.Select(step == 0, A[95 - i], B[i]) + T.float32(1)

    @T.prim_func
    def serial(A: T.Buffer((96,), "float32"), B: T.Buffer((96,), "float32")):
        T.func_attr({"global_symbol": "serial"})
        for i in range(96):
            B[i] = A[i] + T.float32(1)


def launched(mod: tvm.IRModule = Loops, **options: Any) -> tvm.IRModule:
    return LaunchRegions(LLVM, StitchConfig(**options))(mod)


def announced(func: Any) -> list[int]:
    """Return the extents that a function announces, in order."""
    found: list[int] = []

    def visit(call: Any) -> None:
        if call.args and getattr(call.args[0], "value", None) == launcher.EXTENT:
            found.append(int(call.args[1]))

    tvm_ffi.structural_walk(func.body, (tvm.ir.Call, visit), order="pre")
    return found


@NEEDED
def test_loops_are_announced_and_groups_by_zero() -> None:
    after = launched()
    assert {gvar.name_hint: announced(func) for gvar, func in after.functions_items()} == {
        "alone": [96],
        "meeting": [0],
        "serial": [],
    }
    tvm.ir.assert_structural_equal(after["serial"], Loops["serial"])
    assert [module.kind for module in after.attrs["external_mods"]] == ["tvm_stitch.deploy.embedded"]


def test_modules_that_keep_the_pool_of_tvm_stay() -> None:
    tvm.ir.assert_structural_equal(launched(tvm_thread_pool=True), Loops)
    other = LaunchRegions(tvm.target.Target("c"), StitchConfig())(Loops)
    tvm.ir.assert_structural_equal(other, Loops)
    only_serial = tvm.IRModule({"serial": Loops["serial"]})
    tvm.ir.assert_structural_equal(launched(only_serial), only_serial)


@NEEDED
def test_one_module_has_many_functions_with_regions() -> None:
    after = launched()
    library = tvm.compile(tvm.IRModule(dict(after.functions_items())), target=LLVM)
    text = library.mod.inspect_source("ll")
    assert "@__TVMBackendParallelLaunch = weak hidden alias" in text
    assert "@__TVMBackendParallelBarrier = weak hidden alias" in text
    given = np.arange(96, dtype="float32")
    for name, wanted in (("alone", given + 1), ("meeting", given[::-1] + 3), ("serial", given + 1)):
        result = tvm.runtime.tensor(np.zeros(96, "float32"))
        library[name](tvm.runtime.tensor(given), result)
        np.testing.assert_array_equal(result.numpy(), wanted)


def softmax(rows: int = 512) -> tvm.IRModule:
    return build(lambda emit, x: R.nn.softmax(x, -1), ((rows, 1024), "float32"))


CHILD = """
import os, sys
import numpy as np
import tvm
from tvm import relax

x = np.random.default_rng(0).standard_normal((512, 1024)).astype("float32")
e = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
for path in sys.argv[1:]:
    vm = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    for _ in range(3):
        got = vm["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, e / e.sum(-1, keepdims=True), rtol=1e-5)
    names = [open(f"/proc/self/task/{each}/comm").read().strip() for each in os.listdir("/proc/self/task")]
    print(names.count("tvm_stitch"))
assert "tvm_stitch" not in sys.modules
"""
"""Loads libraries by TVM alone, checks their results, and prints the number of the launcher's threads after each."""


@pytest.mark.usefixtures("children_without_torch")
@NEEDED
def test_libraries_bring_the_launcher_and_share_its_threads(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("kept.so", "first.so", "second.so")]
    kept = tvm_stitch.compile(softmax(), "llvm", StitchConfig(tvm_thread_pool=True))
    executable = tvm_stitch.compile(softmax(), "llvm")
    tvm_stitch.export_library(kept, paths[0], "llvm")
    executable.executable.export_library(str(paths[1]))
    tvm_stitch.export_library(executable, paths[2], "llvm")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, paths)],
        env={**os.environ, "TVM_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "2", "2"]


@NEEDED
def test_a_build_by_tvm_calls_the_launcher_too() -> None:
    executable = tvm.compile(softmax(), LLVM, relax_pipeline=tvm_stitch.relax.pipeline(LLVM))
    x = np.random.default_rng(0).standard_normal((512, 1024)).astype("float32")
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    e = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(-1, keepdims=True), rtol=1e-5)
    (library,) = [module for module in executable.mod.imports if module.kind == "llvm"]
    assert launcher.EXTENT in library.inspect_source("ll")


def test_reports_name_the_pool() -> None:
    own = tvm_stitch.explain(softmax(), "llvm")
    kept = tvm_stitch.explain(softmax(), "llvm", StitchConfig(tvm_thread_pool=True))
    assert "threads: TVM's pool, because the option tvm_thread_pool" in str(kept)
    if not launcher.CODE.needs():
        assert "threads: tvm_stitch's launcher" in str(own) and own.to_dict()["threads"]
    assert "threads" not in tvm_stitch.explain(softmax(), "cuda").to_dict()


def test_loops_are_kept_as_they_are() -> None:
    """The call is all that changes: TVM divides the loop."""
    before, after = _loops(Loops["alone"]), _loops(launched()["alone"])
    assert len(before) == len(after) == 1
    tvm.ir.assert_structural_equal(after[0].body, before[0].body, map_free_vars=True)


def _loops(func: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, found.append), order="pre")
    return found
