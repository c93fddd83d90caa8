# SPDX-License-Identifier: Apache-2.0
"""The planner takes the candidate of the fewest estimated seconds, and the estimates agree with what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import H200, build, graph
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import DeviceModel
from tvm_stitch.plan import in_block
from tvm_stitch.plan.iteration.alignment import Alignment, Misaligned, align
from tvm_stitch.plan.rows.candidate import Candidate
from tvm_stitch.plan.strategies import split

CONFIG = StitchConfig()


def softmax(emit: Any, x: Any) -> Any:
    return R.nn.softmax(x)


def turned_softmax(emit: Any, x: Any) -> Any:
    return R.nn.softmax(emit(R.permute_dims(x, [1, 0])))


def turned(emit: Any, x: Any) -> Any:
    return R.permute_dims(x, [1, 0])


def log_sum(emit: Any, x: Any) -> Any:
    top = emit(R.max(x, axis=[-1], keepdims=True))
    total = emit(R.sum(emit(R.exp(emit(R.subtract(x, top)))), axis=[-1], keepdims=True))
    return R.add(emit(R.log(total)), top)


@pytest.mark.parametrize(
    ("body", "shape", "strategy"),
    [
        (turned_softmax, (4096, 4096), "persistent"),
        (turned_softmax, (1000, 4096), "transposed_loads"),
        (turned, (4096, 4096), "transposed_loads"),
        (log_sum, (512, 131072), "online"),
        (softmax, (4096, 32768), "async_copies"),
        (softmax, (4096, 1024), "split"),
        (softmax, (16, 131072), "split"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_measured_strategy_has_the_least_time(
    body: Callable[..., Any], shape: tuple[int, int], strategy: str
) -> None:
    alignment = align(graph(build(body, (shape, "bfloat16"))), CHOICES)
    proposed = {p.__module__.rpartition(".")[2]: p(alignment, H200, CONFIG) for p in in_block.STRATEGIES}
    seconds = {name: found.seconds for name, found in proposed.items() if found is not None}
    assert min(seconds, key=seconds.__getitem__) == strategy, seconds


def test_a_factor_of_choices_decides() -> None:
    op_graph = graph(build(log_sum, ((512, 131072), "bfloat16")))
    assert in_block.plan_in_block(op_graph, H200).stage.row_mapping.blocks_per_sm == CHOICES.online_resident
    slow = in_block.plan_in_block(op_graph, H200.with_choices(online_time=100.0))
    assert (
        slow.stage.row_mapping.storage is not in_block.plan_in_block(op_graph, H200).stage.row_mapping.storage
    )


def test_the_least_is_taken_and_of_equals_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def proposing(seconds: float, threads: int) -> Callable[..., Candidate | None]:
        def propose(alignment: Alignment, device: DeviceModel, config: StitchConfig) -> Candidate | None:
            usual = split.propose(alignment, device, config)
            return replace(usual, seconds=seconds, mapping=replace(usual.mapping, threads=threads))

        return propose

    def nothing(alignment: Alignment, device: DeviceModel, config: StitchConfig) -> Candidate | None:
        raise Misaligned("no place for it")

    op_graph = graph(build(softmax, ((64, 64), "float32")))
    strategies = (nothing, proposing(2.0, 2), proposing(1.0, 4), proposing(1.0, 8))
    monkeypatch.setattr(in_block, "STRATEGIES", strategies)
    assert in_block.plan_in_block(op_graph, H200).stage.row_mapping.threads == 4
    monkeypatch.setattr(in_block, "STRATEGIES", (nothing,))
    with pytest.raises(Misaligned, match="no place for it"):
        in_block.plan_in_block(op_graph, H200)
