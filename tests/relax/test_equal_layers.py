# SPDX-License-Identifier: Apache-2.0
"""Equal layers of a model are appraised, planned and emitted once: what compiling does grows with what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm.relax import op as R

from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build
from tvm_stitch.compute.cpu.emit import emit_anchored
from tvm_stitch.config import StitchConfig
from tvm_stitch.records.decisions import decisions_of
from tvm_stitch.relax.pipeline import planning_passes
from tvm_stitch.relax.stitch import compute_templates, schedule_stitch_ops
from tvm_stitch.scope import for_target

F32 = "float32"
SPECS = [((64, 48), F32), ((48, 48), F32), ((48,), F32), ((48,), F32)]
TARGETS = {"llvm": tvm.target.Target("llvm"), "cuda": emulated_target()}


def layers(count: int) -> tvm.IRModule:
    """Layers of a product, a GELU, a residual and a norm."""

    def body(emit: Callable[[Any], Any], x: Any, w: Any, scale: Any, shift: Any) -> Any:
        for _ in range(count):
            y = emit(R.nn.gelu(emit(R.add(emit(R.matmul(x, w)), shift))))
            x = emit(R.nn.layer_norm(emit(R.add(emit(R.matmul(y, w)), x)), scale, shift, axes=[-1]))
            x = emit(R.multiply(x, emit(R.nn.softmax(x))))
        return [x]

    return build(body, *SPECS)


def work(count: int, target: tvm.target.Target, patch: pytest.MonkeyPatch) -> tuple[Counter[str], int]:
    """Count how often each step is done for a model of so many layers, and how many kernels were planned."""
    done: Counter[str] = Counter()

    def counted(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            done[name] += 1
            return step(*args, **kwargs)

        return run

    with patch.context() as p:
        p.setattr(for_target, "estimate_kernel", counted("estimate", for_target.estimate_kernel))
        p.setattr(schedule_stitch_ops, "choose_plan", counted("plan", schedule_stitch_ops.choose_plan))
        p.setattr(schedule_stitch_ops, "emit", counted("emit", schedule_stitch_ops.emit))
        p.setattr(compute_templates, "emit_anchored", counted("template", emit_anchored))
        with target:
            made = tvm.transform.Sequential(planning_passes(target, StitchConfig()))(layers(count))
    return done, len(decisions_of(made).plans)


@pytest.mark.parametrize("kind", TARGETS)
def test_equal_layers_cost_what_one_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, four, eight = (work(count, TARGETS[kind], monkeypatch) for count in (1, 2, 4, 8))
    assert one[0]["estimate"] > 1 and one[0]["plan"] == one[0]["emit"] == one[1] > 0
    assert one == two == four == eight
