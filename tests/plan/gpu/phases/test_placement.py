# SPDX-License-Identifier: Apache-2.0
"""Statistics over the rows and columns of images: the values that stages store, and stages that use all blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from stitch_testing.stitch_graphs import stitch_graph
from tests.graph.helpers import H200, build, check_emulated, draw
from tvm_stitch.graph.sizes import static_size
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.plan.memory import traffic

Spec = tuple[tuple[int, ...], str]
Emit = Callable[[Any], Any]


def response_norm(
    n: int, height: int, width: int, channels: int, dtype: str
) -> tuple[tvm.IRModule, list[Spec]]:
    """ConvNeXt V2's norm: the norm of each channel of an image, divided by its mean over channels, scales the image."""

    def body(emit: Emit, x: Any, gamma: Any, beta: Any) -> Any:
        x, gamma, beta = (emit(R.astype(v, "float32")) for v in (x, gamma, beta))
        y = emit(R.tanh(x))
        norm = emit(R.sqrt(emit(R.sum(emit(R.multiply(y, y)), [1, 2], keepdims=True))))
        mean = emit(R.mean(norm, [3], keepdims=True))
        ratio = emit(R.divide(norm, emit(R.add(mean, relax.const(1e-6, "float32")))))
        scaled = emit(R.add(beta, emit(R.multiply(gamma, emit(R.multiply(y, ratio))))))
        return R.astype(emit(R.add(y, scaled)), dtype)

    specs: list[Spec] = [((n, height, width, channels), dtype), ((channels,), dtype), ((channels,), dtype)]
    return build(body, *specs), specs


def excited(n: int, height: int, width: int, channels: int, dtype: str) -> tuple[tvm.IRModule, list[Spec]]:
    """Scale an image by a sigmoid of its channels' means."""

    def body(emit: Emit, x: Any) -> Any:
        wide = emit(R.astype(x, "float32"))
        mean = emit(R.mean(wide, [1, 2], keepdims=True))
        return R.astype(emit(R.multiply(wide, emit(R.sigmoid(mean)))), dtype)

    specs: list[Spec] = [((n, height, width, channels), dtype)]
    return build(body, *specs), specs


def planned(mod: tvm.IRModule) -> KernelPlan:
    return choose_plan(stitch_graph(mod), H200)


def working_blocks(plan: KernelPlan) -> list[int]:
    """Return the blocks that work in each phase."""
    return [max(stage.stride * stage.tiles for stage in stages) for stages in plan.phases]


@pytest.mark.parametrize("n", [2, 8, 32])
def test_an_image_is_scaled_by_all_blocks(n: int) -> None:
    """A mean has a row for each image, which is too few for what reads the images again."""
    mod, _ = response_norm(n, 28, 28, 384, "float16")
    plan = planned(mod)
    assert working_blocks(plan)[-1] == plan.shared_grid.blocks >= H200.sms
    image = 2 * n * 28 * 28 * 384
    assert static_size(traffic(plan).moved) < 3.2 * image  # read twice and written once


def test_a_few_rows_serve_a_small_result() -> None:
    """An operator that takes less time than a barrier stays with the mean that it reads."""
    mod, _ = response_norm(2, 2, 2, 96, "float16")
    assert len(planned(mod).phases) <= 3


def test_a_quotient_of_each_channel_is_stored() -> None:
    """Otherwise each element of the images would be divided."""
    mod, _ = response_norm(32, 28, 28, 384, "float16")
    plan = planned(mod)
    (stage,) = plan.phases[-1]
    assert not any("divide" in op.name for op in stage.slice.copies)
    (stored,) = (t for t in plan.crossing.stored if "divide" in t.name)
    assert stored.size == 32 * 384


@pytest.mark.parametrize(
    ("n", "side", "channels"), [(32, 7, 3072), (8, 7, 3072), (32, 14, 1536), (32, 56, 384)]
)
def test_partial_sums_are_small(n: int, side: int, channels: int) -> None:
    mod, _ = response_norm(n, side, side, channels, "float16")
    plan = planned(mod)
    image = 2 * n * side * side * channels
    partials = sum(static_size(t.size) * 4 for t in plan.crossing.partials.values())
    assert partials <= image / 8
    (stage,) = plan.phases[0]
    (columns,) = stage.row_mapping.columns.values()
    assert columns.vector == 8  # 16 bytes of float16


CASES = [
    (response_norm, (3, 19, 23, 37)),
    (response_norm, (2, 13, 17, 64)),
    (response_norm, (1, 31, 29, 40)),
    (response_norm, (5, 7, 7, 256)),
    (excited, (3, 19, 23, 37)),
    (excited, (2, 13, 17, 72)),
]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("case", "shape"), CASES)
def test_results(case: Any, shape: tuple[int, ...], dtype: str) -> None:
    mod, specs = case(*shape, dtype)
    check_emulated(mod, draw(specs))
