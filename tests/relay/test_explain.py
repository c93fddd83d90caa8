# SPDX-License-Identifier: Apache-2.0
"""explain for Relay: the report agrees with what relay.build compiles, and nothing is compiled for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tvm
from tvm import relay

from tests.relay.modules import WEIGHT, kernels, two_layers
from tvm_stitch import Report, StitchConfig
from tvm_stitch.records.decisions import decisions_of
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relay import ScheduleStitchOps, StitchError, StitchOps, enable, explain, schedule_stitch_ops

PARAMS = {"w": WEIGHT}


def module(*params: Any, body: Any) -> tvm.IRModule:
    return tvm.IRModule.from_expr(relay.Function(list(params), body))


def refuse(*_: Any) -> Any:
    raise AssertionError("a kernel is built")


@pytest.mark.parametrize("level", [0, 2, 3, 4])
def test_the_kernels_are_those_that_a_build_has(level: int) -> None:
    with tvm.transform.PassContext(opt_level=level):
        report = explain(two_layers(), "llvm", PARAMS)
        with enable() as found:
            lib = relay.build(two_layers(), "llvm", params=PARAMS)
    names = [k.name for k in report.kernels]
    assert sorted(names) == sorted(n for n in kernels(lib) if "stitch" in n) and len(names) == 2
    assert found.report() == report


@pytest.mark.parametrize("target", ["llvm", "cuda -arch=sm_90"])
def test_nothing_is_compiled(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_stitch_ops, "build", refuse)
    monkeypatch.setattr(tvm, "build", refuse)
    report = explain(two_layers(), target, PARAMS, StitchConfig(strict=True))
    assert len(report.kernels) == 2 and report.left == {}


def test_the_pass_alone_builds_or_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(schedule_stitch_ops, "build", lambda kernel, target: seen.append(kernel))
    x = relay.var("x", shape=(4, 33))
    mod = module(x, body=relay.nn.softmax(x))
    outlined = StitchOps(target="llvm")(mod)
    ScheduleStitchOps("llvm", build=False)(outlined)
    assert seen == []
    ScheduleStitchOps("llvm")(outlined)
    assert len(seen) == 1


def test_the_pass_alone_completes_cuda_source() -> None:
    """A barrier in a plain launch is a call of a function that only the completed source defines."""
    x = relay.var("x", shape=(512, 256))
    mod = module(x, body=relay.divide(x, relay.sum(x, axis=0)))
    cuda = tvm.target.Target("cuda -arch=sm_90", host="llvm")
    config = StitchConfig(plain_launch_barriers=True, strict=True)
    outlined = StitchOps(config, cuda)(mod)
    (plan,) = decisions_of(ScheduleStitchOps(cuda, config)(outlined)).plans.values()
    assert plan.cooperative and len(plan.phases) > 1


def test_softmax_moves_each_byte_once() -> None:
    x = relay.var("x", shape=(64, 1024))
    (kernel,) = explain(module(x, body=relay.nn.softmax(x)), "cuda").kernels
    size = 64 * 1024 * 4
    assert (kernel.bytes_read, kernel.bytes_written, kernel.bytes_least) == (size, size, 2 * size)
    assert kernel.rows == "64" and [o["class"] for o in kernel.operators].count("reduce") == 2


def test_the_report_is_json_and_text() -> None:
    report = explain(two_layers(), "llvm", PARAMS)
    assert isinstance(report, Report)
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()
    text = report.verbose()
    assert text.startswith("2 stitch ops for llvm") and all(k.name in text for k in report.kernels)
    assert {(b["producer"], b["consumer"]): b["reason"] for b in report.boundaries} == {
        ("add", "softmax"): "computed in the kernel of dense",
        ("dense", "softmax"): "compute-intensive",
    }


def test_what_is_left_has_a_reason() -> None:
    x = relay.var("x", shape=(4, 8))
    mod = module(x, body=relay.cumsum(relay.exp(x), axis=1))
    assert list(explain(mod).left) == ["cumsum"]
    with pytest.raises(StitchError, match="cumsum"):
        explain(mod, config=StitchConfig(strict=True))


def test_other_targets_get_no_kernels() -> None:
    report = explain(two_layers(), "c")
    assert report.kernels == [] and "not for c" in report.left["all"]


def test_params_are_folded_and_the_module_is_left_as_it_was() -> None:
    x, scale = relay.var("x", shape=(8, 32)), relay.var("scale", shape=(32,))
    mod = module(x, scale, body=relay.nn.softmax(x * relay.exp(scale)))
    before = mod.astext()
    with tvm.transform.PassContext(opt_level=3):
        free = explain(mod).kernels
        bound = explain(mod, params={"scale": WEIGHT.reshape(-1)[:32]}).kernels
    assert mod.astext() == before
    assert len(free) == len(bound) == 1
    assert len(bound[0].operators) == len(free[0].operators) - 1  # exp of the parameter is known


def test_contexts_around_it_are_not_concerned() -> None:
    with enable(StitchConfig(max_operators=1)) as outer:
        report = explain(two_layers(), params=PARAMS)
        assert outer.report().kernels == [] and len(report.kernels) == 2
        relay.build(two_layers(), "llvm", params=PARAMS)
    assert len(outer.report().kernels) > 2


def test_several_builds_in_one_context() -> None:
    with enable() as found:
        relay.build(two_layers(), "llvm", params=PARAMS)
        relay.build(two_layers(), "llvm -mcpu=x86-64", params=PARAMS)
    report = found.report()
    names = [k.name for k in report.kernels]
    assert len(set(names)) == 4 and [n for n in names if n.endswith(" (2)")] == names[2:]
    assert "llvm -keys=cpu" in report.target and "mcpu=x86-64" in report.target
    assert len(report.boundaries) == 4


def test_several_devices_are_reported_without_kernels() -> None:
    found = Recorder()
    assert found.report().verbose().startswith("0 stitch ops for ")
    with enable() as found:
        try:
            relay.build(two_layers(), ["llvm", tvm.target.Target("cuda -arch=sm_90", host="llvm")])
        except tvm.TVMError:
            pass  # whatever TVM says of it
    assert found.report().target == "several devices"
    assert "several devices" in found.report().left["all"]


@pytest.mark.parametrize("bad", [relay.Function([], relay.const(1.0)), "model", None], ids=str)
def test_what_is_no_module_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="IRModule"):
        explain(bad)


def test_a_bad_configuration_is_refused() -> None:
    with pytest.raises(TypeError, match="StitchConfig"):
        explain(two_layers(), config={"strict": True})  # type: ignore[arg-type]
