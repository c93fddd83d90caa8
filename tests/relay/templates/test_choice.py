# SPDX-License-Identifier: Apache-2.0
"""Products are computed by templates, or by what the user asked for instead."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import auto_scheduler, autotvm, relay
from tvm import meta_schedule as ms

from tvm_stitch import StitchConfig
from tvm_stitch.relay.templates.choice import Templates, asked_instead
from tvm_stitch.relay.templates.layouts import tophub_marked
from tvm_stitch.support.failures import Refusal

LLVM = tvm.target.Target("llvm")
ANSOR, METASCHEDULE = ({f"relay.backend.use_{name}": True} for name in ("auto_scheduler", "meta_schedule"))


@pytest.mark.parametrize(
    ("tuner", "options", "whose"),
    [("", {}, ""), ("ansor", {}, ""), ("ansor", ANSOR, "Ansor's"), ("ms", METASCHEDULE, "MetaSchedule's"),
     ("autotvm", {}, "AutoTVM's")],
)  # fmt: skip
def test_a_tuners_schedules_come_first(
    tuner: str, options: dict[str, Any], whose: str, tmp_path: Path
) -> None:
    log = tmp_path / "log.json"
    log.touch()
    opened: dict[str, Any] = {
        "": nullcontext,
        "ansor": lambda: auto_scheduler.ApplyHistoryBest(str(log)),
        "autotvm": lambda: autotvm.apply_history_best(str(log)),
        "ms": ms.database.MemoryDatabase,
    }
    with opened[tuner](), tvm.transform.PassContext(config=options):
        said = asked_instead(LLVM, StitchConfig())
        assert said == (f"{whose} schedules are asked for" if whose else "")
        assert asked_instead(LLVM, StitchConfig(compute="templates")) == ""


def test_records_that_tvm_brings_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotvm.tophub, "context", lambda *_: autotvm.task.ApplyHistoryBest([]))
    with tophub_marked(), autotvm.tophub.context(LLVM):
        assert asked_instead(LLVM, StitchConfig()) == ""
    with autotvm.tophub.context(LLVM):
        assert asked_instead(LLVM, StitchConfig()) != ""


@pytest.mark.parametrize(("size", "channels", "served"), [(7, 512, False), (8, 512, True), (7, 256, True)])
def test_few_places_of_a_large_weight_are_tvms(size: int, channels: int, served: bool) -> None:
    x, w = relay.var("x", shape=(1, size, size, channels)), relay.var("w", shape=(3, 3, channels, channels))
    y = relay.nn.conv2d(x, w, padding=(1, 1), data_layout="NHWC", kernel_layout="HWIO")
    templates = Templates(LLVM, StitchConfig())
    with nullcontext() if served else pytest.raises(Refusal, match="a weight of 4608 x 512 for 49 positions"):
        graph = templates.of_function(relay.Function([x, w], y), "conv2d", [False, True])
        assert templates.serves(graph)


def test_a_targets_library_comes_first() -> None:
    blas = tvm.target.Target("llvm -libs=cblas")
    assert asked_instead(blas, StitchConfig()) == "the target asks for cblas"
    assert asked_instead(blas, StitchConfig(compute="templates")) == ""
