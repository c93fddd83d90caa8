# SPDX-License-Identifier: Apache-2.0
"""A failure at any step costs the scope that it is about.

TVM keeps that one, with the reason, and the rest is stitched.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build, draw
from tvm_stitch.config import StitchConfig
from tvm_stitch.execution.count import count_lowered
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pass_table, pipeline
from tvm_stitch.relax.build import build as build_module
from tvm_stitch.relax.stitch.stitch_ops import STITCH_ATTR
from tvm_stitch.support.errors import StitchError

F32 = "float32"
SPECS = [((6, 20), F32), ((20, 20), F32)]
LLVM = tvm.target.Target("llvm")


def three_scopes() -> tvm.IRModule:
    """Scopes between matmuls. The planted failures are about the one in the middle, with the tanh."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        first = emit(R.nn.softmax(emit(R.exp(emit(R.matmul(x, w))))))
        t = emit(R.tanh(emit(R.matmul(first, w))))
        second = emit(R.divide(t, emit(R.sum(emit(R.exp(t)), -1, True))))
        return [R.nn.softmax(emit(R.negative(emit(R.matmul(second, w)))))]

    return build(body, *SPECS)


def expected(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Compute them in float64."""

    def softmax(a: np.ndarray) -> np.ndarray:
        e = np.exp(a - a.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    x, w = x.astype("float64"), w.astype("float64")
    t = np.tanh(softmax(np.exp(x @ w)) @ w)
    return softmax(-(t / np.exp(t).sum(-1, keepdims=True)) @ w)


class Planted(RuntimeError):
    pass


def fails_for_tanh(original: Callable[..., Any], of: Callable[..., str]) -> Callable[..., Any]:
    def step(*args: Any, **kwargs: Any) -> Any:
        if "tanh" in of(*args, **kwargs):
            raise Planted("first line\nand what is wrong")
        return original(*args, **kwargs)

    return step


def plant_reading(patch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.relax.stitch import dataflow

    patch.setattr(dataflow, "read", fails_for_tanh(dataflow.read, lambda func, name: name))


def plant_appraising(patch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.scope import for_target

    step = fails_for_tanh(for_target.estimate_kernel, lambda graph, *_: str(graph))
    patch.setattr(for_target, "estimate_kernel", step)


def plant_identifying(patch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.scope import identify
    from tvm_stitch.scope.node import NodeKind

    original = identify.fuse_horizontally

    def step(merger: Any, is_scope: Any) -> None:
        if any("tanh" in n.name and n.kind is NodeKind.MEMORY for n in merger.nodes):
            raise Planted("first line\nand what is wrong")
        original(merger, is_scope)

    patch.setattr(identify, "fuse_horizontally", step)


def plant_outlining(patch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.relax.stitch import stitch_ops

    original = stitch_ops._function
    patch.setattr(
        stitch_ops,
        "_function",
        fails_for_tanh(original, lambda view, nodes, *_: str([n.name for n in nodes])),
    )


def plant_merging(patch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.relax.stitch import mark

    fuse = relax.transform.FuseTIR()

    def check(mod: tvm.IRModule) -> tvm.IRModule:
        fails_for_tanh(lambda *_: None, str)(
            [g.name_hint for g in mod.get_global_vars() if "stitch" in g.name_hint]
        )
        return fuse(mod)

    merging = SimpleNamespace(FuseTIR=lambda: check)
    patch.setattr(mark, "relax", SimpleNamespace(Function=relax.Function, transform=merging))


def plant_planning(patch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.relax.stitch import schedule_stitch_ops as schedule

    patch.setattr(schedule, "choose_plan", fails_for_tanh(schedule.choose_plan, lambda graph, *_: graph.name))


def plant_emitting(patch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.relax.stitch import schedule_stitch_ops as schedule

    patch.setattr(schedule, "emit", fails_for_tanh(schedule.emit, lambda func, plan: plan.graph.name))


def _stitched_names(mod: tvm.IRModule) -> str:
    marked = [g.name_hint for g, f in mod.functions_items() if f.attrs and STITCH_ATTR in f.attrs]
    return str(marked)


def plant_workspaces(patch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.relax.stitch import lift_workspace

    lift = lift_workspace.LiftWorkspace

    @tvm.transform.module_pass(opt_level=0, name="LiftWorkspace")
    def step(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        return fails_for_tanh(lift(), _stitched_names)(mod)

    patch.setattr(pass_table, "LiftWorkspace", lambda: step)


def plant_lowering(patch: pytest.MonkeyPatch) -> None:
    """TVM fails on the operators that are left to it as long as that scope is stitched."""

    @tvm.transform.module_pass(opt_level=0, name="Schedules")
    def step(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        return fails_for_tanh(lambda m: m, _stitched_names)(mod)

    patch.setattr(pass_table, "HalfSums", lambda: step)


def plant_building(patch: pytest.MonkeyPatch) -> None:
    """Code generation fails as long as that scope is stitched."""
    original = tvm.tirx.build
    patch.setattr(tvm.tirx, "build", fails_for_tanh(original, lambda mod, **_: _stitched_names(mod)))


STEPS = {
    "reading": plant_reading,
    "appraising": plant_appraising,
    "identifying": plant_identifying,
    "outlining": plant_outlining,
    "merging": plant_merging,
    "planning": plant_planning,
    "emitting": plant_emitting,
    "workspaces": plant_workspaces,
    "lowering": plant_lowering,
    "building": plant_building,
}


@pytest.mark.parametrize("step", STEPS)
def test_a_failure_costs_its_own_scope(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mod, inputs = three_scopes(), draw(SPECS)
    whole = build_module(mod, LLVM)
    assert len(whole.recorder.plans) == 3 and whole.recorder.declined == {}
    STEPS[step](monkeypatch)
    built = build_module(mod, LLVM)
    plans, declined = built.recorder.plans, built.recorder.declined
    assert len(plans) >= 2 and not any("tanh" in name for name in plans), list(plans)
    assert len(declined) == 1, declined
    ((name, reason),) = declined.items()
    assert "tanh" in name and "first line and what is wrong" in reason
    counted = count_lowered(built.lowered, LLVM)
    assert set(plans) <= set(counted.names)
    vm = relax.VirtualMachine(built.executable, tvm.cpu())
    output = vm["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    np.testing.assert_allclose(output, expected(*inputs), rtol=1e-5, atol=1e-6)


def two_alike() -> tvm.IRModule:
    """Build two scopes of the same operators, put together differently."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        t = emit(R.tanh(x))
        y = emit(R.matmul(emit(R.divide(t, emit(R.sum(emit(R.exp(t)), -1, True)))), w))
        t = emit(R.tanh(y))
        return [R.divide(emit(R.exp(t)), emit(R.sum(t, -1, True)))]

    return build(body, *SPECS)


@pytest.mark.parametrize("step", ["outlining", "merging", "planning", "emitting", "workspaces", "lowering"])
def test_each_scope_has_a_reason_of_its_own(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    STEPS[step](monkeypatch)
    declined = build_module(two_alike(), LLVM).recorder.declined
    assert len(declined) == 2, declined


def test_compiling_again_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes as long again for each part: the first warning has the error, the last one the scope."""
    plant_building(monkeypatch)
    build_module(three_scopes(), LLVM)
    first, *_, last = (record.getMessage() for record in caplog.records)
    assert "compiled again, in parts" in first and "first line and what is wrong" in first
    assert "tanh" in last and "is left to TVM" in last


@pytest.mark.parametrize("step", STEPS)
def test_in_strict_mode_it_is_an_error(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    STEPS[step](monkeypatch)
    with pytest.raises(StitchError, match="cannot be stitched: .*what is wrong"):
        tvm_stitch.compile(three_scopes(), LLVM, StitchConfig(strict=True))


@pytest.mark.parametrize("step", ["outlining", "planning", "lowering"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_what_ends_a_program_is_no_failure_of_a_scope(
    step: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.relax.test_planted_failures.Planted", kind)
    STEPS[step](monkeypatch)
    with pytest.raises(kind):
        tvm_stitch.compile(three_scopes(), LLVM)
    with pytest.raises(kind):
        tvm.compile(three_scopes(), LLVM, relax_pipeline=pipeline(LLVM))


@tvm.instrument.pass_instrument
class Stops:
    """Raises before the k-th run of a pass."""

    def __init__(self, name: str, err: BaseException, at: int = 1):
        self.wanted, self.err, self.left = name, err, at

    def run_before_pass(self, _mod: tvm.IRModule, info: Any) -> None:
        if info.name == self.wanted:
            self.left -= 1
            if not self.left:
                raise self.err


@pytest.mark.parametrize("name", ["Stitch", "StitchOps", "MergeStitchOps", "FuseTIR", "KillAfterLastUse"])
@pytest.mark.parametrize("err", [KeyError("mine"), KeyboardInterrupt(), ValueError("mine")], ids=repr)
def test_what_an_instrument_raises_comes_out(name: str, err: BaseException) -> None:
    recorder = Recorder()
    with pytest.raises(type(err), match="mine" if err.args else None):
        with tvm.transform.PassContext(instruments=[Stops(name, err)]):
            tvm.compile(three_scopes(), LLVM, relax_pipeline=pipeline(LLVM, recorder=recorder))
    assert recorder.declined == {}
    assert tvm.transform.PassContext.current().instruments is None or not list(
        tvm.transform.PassContext.current().instruments
    )


def test_threads_that_compile_at_once_are_all_stitched() -> None:
    def model(depth: int) -> tvm.IRModule:
        def body(emit: Any, x: Any, w: Any) -> Any:
            for _ in range(depth):
                x = emit(R.nn.softmax(emit(R.nn.gelu(emit(R.matmul(emit(R.nn.silu(x)), w))))))
            return [x]

        return build(body, *SPECS)

    found: dict[int, Recorder] = {}
    begin = threading.Barrier(4, timeout=60)
    models = {depth: model(depth) for depth in (2, 3, 4, 5)}  # TVM's block builders are for one thread

    def work(depth: int) -> None:
        begin.wait()
        found[depth] = build_module(models[depth], LLVM).recorder

    threads = [threading.Thread(target=work, args=[depth]) for depth in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.keys() == models.keys(), "a thread failed"
    for depth in (2, 3, 4, 5):
        assert found[depth].declined == {}
        assert len(found[depth].plans) == len(build_module(models[depth], LLVM).recorder.plans) > 0


@tvm.instrument.pass_instrument
class Interrupts:
    """Sends SIGINT before the k-th pass of a compile."""

    def __init__(self, at: int):
        self.left = at

    def run_before_pass(self, _mod: tvm.IRModule, _info: Any) -> None:
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("at", [1, 4, 9, 12, 14, 17, 22, 30])
def test_an_interrupt_ends_the_compile_whatever_pass_is_next(at: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), tvm.transform.PassContext(instruments=[Interrupts(at)]):
        tvm.compile(three_scopes(), LLVM, relax_pipeline=pipeline(LLVM))
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("where", ["read", "choose_plan", "emit"])
def test_an_interrupt_ends_the_compile_whatever_step_is_done(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvm_stitch.relax.stitch import schedule_stitch_ops as schedule

    original = getattr(schedule, where)

    def step(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(schedule, where, step)
        with pytest.raises(KeyboardInterrupt):
            tvm_stitch.compile(three_scopes(), LLVM)
    assert len(build_module(three_scopes(), LLVM).recorder.plans) == 3


@pytest.mark.parametrize("whole", [True, False], ids=["compile", "pipeline"])
@pytest.mark.checks_kernels
def test_a_kernel_that_tvm_does_not_lower_costs_its_own_scope(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contents of a kernel make every lowering of it fail, alone or with others."""
    from tvm_stitch.relax.stitch import schedule_stitch_ops as schedule

    emit = schedule.emit

    def emitted(func: Any, plan: Any) -> Any:
        made = emit(func, plan)
        if "tanh" not in plan.graph.name:
            return made
        count = tvm.tirx.call_extern("int32", "count")
        vectors = tvm.tirx.For(
            tvm.tirx.Var("v", "int32"), 0, count, tvm.tirx.ForKind.VECTORIZED, tvm.tirx.Evaluate(0)
        )
        change = tvm.tirx.BufferStore, lambda store: tvm.tirx.SeqStmt([store, vectors])
        return made.with_body(tvm_ffi.structural_map(made.body, change, order="post"))

    monkeypatch.setattr(schedule, "emit", emitted)
    mod, inputs, recorder = three_scopes(), draw(SPECS), Recorder()
    if whole:
        built = build_module(mod, LLVM)
        executable, recorder = built.executable, built.recorder
    else:
        executable = tvm.compile(mod, LLVM, relax_pipeline=pipeline(LLVM, recorder=recorder))
    ((name, reason),) = recorder.declined.items()
    assert "tanh" in name and "TVM does not lower its kernel" in reason and len(recorder.plans) >= 2
    output = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    np.testing.assert_allclose(output, expected(*inputs), rtol=1e-5, atol=1e-6)
