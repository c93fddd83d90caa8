# SPDX-License-Identifier: Apache-2.0
"""enable: relay.build and its kin stitch inside the context, and only there, with every executor and opt_level."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay
from tvm.meta_schedule.database import MemoryDatabase
from tvm.relay.backend.vm import VMCompiler
from tvm.relay.build_module import BuildModule
from tvm.runtime.vm import VirtualMachine

from stitch_testing.relay.run import build_stock
from tests.relay.modules import (
    WEIGHT,
    drawn,
    kernels,
    run_ahead_of_time,
    run_graph,
    two_layers,
    two_layers_expected,
)
from tvm_stitch import StitchConfig
from tvm_stitch.relay import StitchError, enable, hook

PARAMS = {"w": WEIGHT}


def close(found: list[Any], x: np.ndarray) -> None:
    for a, b in zip(found, two_layers_expected(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def stitched(names: list[str]) -> list[str]:
    return [n for n in names if "stitch" in n]


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
def test_the_graph_executor_gets_four_kernels_at_every_level(level: int) -> None:
    x = drawn(8, 16, seed=level)
    mod = two_layers()
    before = mod.astext()
    with enable() as found, tvm.transform.PassContext(opt_level=level):
        lib = relay.build(mod, "llvm", params=PARAMS)
    names = kernels(lib)
    assert len(names) == 4 and len(stitched(names)) == 2
    assert set(found.plans) == set(stitched(names)) and not found.declined
    assert mod.astext() == before  # the user's module is his own
    close(run_graph(lib, x), x)


def test_fewer_kernels_than_without() -> None:
    assert len(kernels(build_stock(two_layers(), tvm.target.Target("llvm"), PARAMS))) == 6


@pytest.mark.parametrize(
    "options",
    [
        {"config": {"relay.backend.use_meta_schedule": True}},
        {"config": {"relay.backend.use_auto_scheduler": True}},
        {"required_pass": ["MetaScheduleLayoutRewrite"]},
        {"required_pass": ["FastMath"]},
        {"disabled_pass": ["AlterOpLayout"]},
        {"required_pass": ["CombineParallelDense", "CombineParallelBatchMatmul"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("level", range(5))
def test_opt_in_passes_undo_nothing(level: int, options: dict[str, Any]) -> None:
    x = drawn(8, 16)
    with MemoryDatabase(), enable(), tvm.transform.PassContext(opt_level=level, **options):
        lib = relay.build(two_layers(), "llvm", params=PARAMS)
    assert len(stitched(kernels(lib))) == 2 and len(kernels(lib)) == 4
    close(run_graph(lib, x), x)


def test_ahead_of_time(tmp_path: Path) -> None:
    x = drawn(8, 16)
    with enable() as found:
        lib = relay.build(two_layers(), "llvm", params=PARAMS, executor=relay.backend.Executor("aot"))
    assert len(found.plans) == 2
    close(run_ahead_of_time(lib, tmp_path, x), x)


def test_the_graph_executor_from_a_file(tmp_path: Path) -> None:
    x = drawn(8, 16)
    with enable():
        lib = relay.build(two_layers(), "llvm", params=PARAMS)
    lib.export_library(tmp_path / "graph.so")
    close(run_graph(tvm.runtime.load_module(tmp_path / "graph.so"), x), x)


@pytest.mark.parametrize("level", [1, 3])
def test_the_virtual_machine(level: int) -> None:
    x = drawn(8, 16)
    with enable() as found, tvm.transform.PassContext(opt_level=level):
        executable = relay.vm.compile(two_layers(), "llvm", params=PARAMS)
    assert len(found.plans) == 2
    results = VirtualMachine(executable, tvm.cpu()).invoke("main", tvm.nd.array(x))
    close([r.numpy() for r in results], x)


def test_create_executor() -> None:
    x = drawn(8, 16)
    with enable() as found:
        run = relay.create_executor("graph", two_layers(), tvm.cpu(), "llvm").evaluate()
        close([r.numpy() for r in run(x, WEIGHT)], x)
    assert len(found.plans) == 2


def test_leaving_restores_everything_also_after_an_exception() -> None:
    methods = [(owner, name, getattr(owner, name)) for owner, name in hook.METHODS]
    with pytest.raises(ZeroDivisionError), enable():
        assert BuildModule.build is not methods[0][2]
        raise ZeroDivisionError
    assert [(o, n, getattr(o, n)) for o, n in hook.METHODS] == methods
    assert VMCompiler.lower is methods[2][2]
    lib = relay.build(two_layers(), "llvm", params=PARAMS)
    assert not stitched(kernels(lib))


def test_an_error_inside_the_build_leaves_the_next_one_intact() -> None:
    x, w = relay.var("x", shape=(2, 3)), relay.var("w", shape=(4, 5))
    broken = tvm.IRModule.from_expr(relay.Function([x, w], relay.add(x, w)))
    with enable():
        with pytest.raises(tvm.error.DiagnosticError):
            relay.build(broken, "llvm")
        assert stitched(kernels(relay.build(two_layers(), "llvm", params=PARAMS)))


def test_the_innermost_of_nested_contexts_holds() -> None:
    with enable() as outer:
        with enable(StitchConfig(max_operators=1)) as inner:
            relay.build(two_layers(), "llvm", params=PARAMS)
        assert len(inner.plans) > 2 and not outer.plans
        relay.build(two_layers(), "llvm", params=PARAMS)
        assert len(outer.plans) == 2


def test_contexts_close_in_any_order() -> None:
    outer, inner = enable(), enable(StitchConfig(max_operators=1))
    first, second = outer.__enter__(), inner.__enter__()
    outer.__exit__(None, None, None)
    relay.build(two_layers(), "llvm", params=PARAMS)
    inner.__exit__(None, None, None)
    assert not first.plans and second.plans
    assert not stitched(kernels(relay.build(two_layers(), "llvm", params=PARAMS)))


def test_other_threads_are_not_concerned() -> None:
    libs: dict[str, Any] = {}
    opened, built = threading.Event(), threading.Event()

    def build(name: str) -> None:
        libs[name] = relay.build(two_layers(), "llvm", params=PARAMS)

    def build_plain() -> None:
        opened.wait()
        try:
            build("plain")
        finally:
            built.set()  # one build at a time: TVM's own tag scopes are shared by threads

    def build_enabled() -> None:
        with enable():
            opened.set()
            built.wait()
            build("enabled")

    with enable():
        threads = [threading.Thread(target=work) for work in (build_plain, build_enabled)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not stitched(kernels(libs["plain"]))
    assert len(stitched(kernels(libs["enabled"]))) == 2


def test_instruments_of_the_user_still_see_the_passes() -> None:
    seen: list[str] = []

    @tvm.instrument.pass_instrument
    class Watch:
        def run_before_pass(self, _mod: Any, info: Any) -> None:
            seen.append(str(info.name))

    with enable(), tvm.transform.PassContext(opt_level=3, instruments=[Watch()]):
        relay.build(two_layers(), "llvm", params=PARAMS)
    assert "FuseOps" in seen and hook.ENTRY in seen


def test_several_devices_compile_as_without() -> None:
    with enable() as found:
        try:
            relay.build(
                two_layers(), ["llvm", tvm.target.Target("cuda -arch=sm_90", host="llvm")], params=PARAMS
            )
        except tvm.TVMError:
            pass  # whatever TVM says of it, it says without us
    assert not found.plans and "several devices" in found.declined["all"]


def test_other_runtimes_compile_as_without() -> None:
    with enable() as found:
        runtime = relay.backend.Runtime("cpp", {"system-lib": True})
        relay.build(two_layers(), "llvm", runtime=runtime, params=PARAMS)
    assert not found.plans and "runtime" in found.declined["all"]


def test_other_targets_compile_as_without() -> None:
    with enable() as found:
        relay.build(two_layers(), tvm.target.Target("c"), params=PARAMS)
    assert not found.plans and "not for c" in found.declined["all"]


def test_strict_says_what_cannot_be_stitched() -> None:
    x = relay.var("x", shape=(4, 8))
    mod = tvm.IRModule.from_expr(relay.Function([x], relay.cumsum(relay.exp(x), axis=1)))
    with enable() as found:
        lib = relay.build(mod, "llvm")
    assert "cumsum" in found.declined and kernels(lib)
    with pytest.raises(StitchError, match="cumsum"), enable(StitchConfig(strict=True)):
        relay.build(mod, "llvm")


def test_a_bad_configuration_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="StitchConfig"), enable({"strict": True}):  # type: ignore[arg-type]
        pass
    assert not hook._active.open
