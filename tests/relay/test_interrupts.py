# SPDX-License-Identifier: Apache-2.0
"""Interrupts and other exceptions on their way through a TVM whose callbacks let nothing but Exceptions out."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import tvm
from tvm import relay

import tvm_stitch
from tvm_stitch.relay import hook, lower
from tvm_stitch.support.interrupts import carrying, check, watched


def _state() -> tuple[Any, ...]:
    methods = [getattr(*m) for m in hook.METHODS]
    return (
        signal.getsignal(signal.SIGINT),
        methods,
        lower.te_compiler.libinfo,
        str(tvm.target.Target.current()),
    )


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = _state()
    yield
    assert _state() == before


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def through_tvm(work: Any) -> Any:
    @tvm.transform.module_pass(opt_level=0, name="Work")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        work()
        return mod

    return tvm.transform.Sequential([run])(tvm.IRModule())


def model() -> tvm.IRModule:
    x, w = (relay.var(n, shape=s, dtype="float32") for n, s in (("x", (8, 16)), ("w", (16, 16))))
    value = relay.nn.softmax(relay.nn.dense(relay.exp(x), w))
    return tvm.IRModule.from_expr(relay.Function([x, w], relay.tanh(relay.nn.dense(value, w))))


def stitched() -> int:
    with tvm_stitch.relay.enable() as recorder:
        relay.build(model(), "llvm")
    return len(recorder.plans)


@pytest.mark.parametrize(
    "err", [KeyboardInterrupt(), SystemExit(2), MemoryError(), ValueError("x")], ids=repr
)
def test_a_carried_exception_comes_out_of_watching_as_itself(err: BaseException) -> None:
    @carrying
    def work() -> None:
        raise err

    with pytest.raises(type(err)) as caught, watched():
        through_tvm(lambda: through_tvm(work))
    assert caught.value is err


def test_an_interrupt_ends_the_pass_that_it_came_in() -> None:
    with pytest.raises(KeyboardInterrupt), watched():
        through_tvm(interrupt)
        pytest.fail("the interrupt was swallowed")


def test_an_interrupt_that_is_caught_on_the_way_is_raised_at_the_next_check() -> None:
    with pytest.raises(KeyboardInterrupt), watched():
        try:
            through_tvm(interrupt)
        except Exception:
            pass
        check()
        pytest.fail("check raised nothing")


@tvm.ir.instrument.pass_instrument
class Interrupts:
    def __init__(self, wanted: str):
        self.wanted = wanted

    def run_before_pass(self, _mod: tvm.IRModule, info: Any) -> None:
        if info.name == self.wanted:
            interrupt()


@pytest.mark.parametrize(
    "name", ["SimplifyInference", "PlanDevicesRewrite", "StitchOps", "ScheduleStitchOps", "FuseOps"]
)
def test_an_interrupt_ends_a_build_whatever_pass_is_next(name: str) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        tvm.transform.PassContext(opt_level=3, instruments=[Interrupts(name)]),
    ):
        stitched()


@pytest.mark.parametrize("where", ["read_function", "choose_plan", "emit", "build"])
def test_an_interrupt_ends_a_build_whatever_step_is_done(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.relay import schedule_stitch_ops as schedule

    whole, original = stitched(), getattr(schedule, where)

    def step(*args: Any) -> Any:
        interrupt()
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(schedule, where, step)
        with pytest.raises(KeyboardInterrupt):
            stitched()
    assert stitched() == whole > 0


@pytest.mark.parametrize("where", ["_outline", "read_function", "choose_plan", "emit", "build"])
def test_a_failure_costs_its_own_scope(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_stitch.relay import schedule_stitch_ops as schedule
    from tvm_stitch.relay import stitch_ops

    whole, owner = stitched(), stitch_ops._Outliner if where == "_outline" else schedule
    original, calls = getattr(owner, where), []

    def step(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise KeyError("planted")
        return original(*args)

    monkeypatch.setattr(owner, where, step)
    with tvm_stitch.relay.enable() as recorder:
        relay.build(model(), "llvm")
    assert len(recorder.plans) == whole - 1 and len(recorder.declined) == 1
    assert "KeyError: no 'planted'" in next(iter(recorder.declined.values()))
