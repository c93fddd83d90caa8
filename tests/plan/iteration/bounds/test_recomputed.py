# SPDX-License-Identifier: Apache-2.0
"""Windows of windows are kernels of their own, if an element would be computed from too many loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.choices import CHOICES
from tests.graph.helpers import LOWERING, STRICT, build, draw, emulated, graphs, legalize
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.legalize.short_reductions import ShortReductions

SHAPE = 2, 12, 12, 16


def pools(*windows: int, between: Callable[[Any], Any] = R.nn.relu, shown: bool = False) -> tvm.IRModule:
    """Return pools of squares one behind another, whose windows overlap. ``shown``: each is a result."""

    def body(emit: Any, x: Any) -> Any:
        results = []
        for side in windows:
            x = emit(between(emit(R.nn.max_pool2d(x, (side, side), (1, 1), layout="NHWC"))))
            results.append(x)
        return results if shown else x

    return build(body, (SHAPE, "float16"))


def kernels_of(mod: tvm.IRModule) -> int:
    """Return the number of stitch ops if pools are element-wise operators."""
    return len(graphs(legalize(ShortReductions(CHOICES)(mod))))


@pytest.mark.parametrize(
    ("windows", "kernels"),
    [((3, 3), 2), ((3, 2), 2), ((2, 3), 2), ((2, 2), 1), ((2, 2, 2), 2), ((3,), 1), ((1, 3), 1)],
)
def test_pools_of_pools(windows: tuple[int, ...], kernels: int) -> None:
    """A relu is between the pools. 36 loads an element are too many, and 16 are not."""
    mod = pools(*windows)
    (x,) = draw([(SHAPE, "float16")])
    target = emulated_target()
    done = run_cuda(
        mod, [x], target=target, relax_pipeline=pipeline(target, STRICT), tir_pipeline=LOWERING
    ).check()
    assert kernels_of(mod) == len(done.launches) == kernels
    for side in windows:
        seen = np.lib.stride_tricks.sliding_window_view(x, (side, side), (1, 2))
        x = np.maximum(seen.max((-2, -1)), 0)
    assert np.array_equal(done.outputs[0], x)


def test_a_pool_that_is_a_result_too() -> None:
    assert kernels_of(pools(3, 3, shown=True)) == 2


def test_two_pools_of_one_input_share_a_kernel() -> None:
    def body(emit: Any, x: Any) -> Any:
        return R.add(*(emit(R.nn.max_pool2d(x, (3, 3), (1, 1), layout="NHWC")) for _ in range(2)))

    assert kernels_of(build(body, (SHAPE, "float16"))) == 1


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_norms_of_windows(layout: str) -> None:
    """The mean of a window of normalized values: each value is in nine windows."""

    def body(emit: Any, x: Any) -> Any:
        norm = emit(
            R.divide(x, emit(R.sqrt(emit(R.add(emit(R.mean(emit(R.multiply(x, x)), [1, 2, 3], True)), one)))))
        )
        return R.nn.avg_pool2d(norm, (3, 3), (1, 1), layout=layout)

    one = relax.const(1.0, "float32")
    (x,) = draw([((2, 24, 24, 24), "float32")])
    mod = build(body, (x.shape, "float32"))
    assert kernels_of(mod) == 2
    (found,) = emulated(mod, x)
    norm = x / np.sqrt((x.astype("float64") ** 2).mean((1, 2, 3), keepdims=True) + 1)
    axes = (2, 3) if layout == "NCHW" else (1, 2)
    wanted = np.lib.stride_tricks.sliding_window_view(norm, (3, 3), axes).mean((-2, -1))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_sums_of_a_few_heavy_values_that_each_is_in_once() -> None:
    def body(emit: Any, x: Any) -> Any:
        return R.sum(emit(R.exp(x)), 1)

    assert kernels_of(build(body, ((64, 4, 64), "float16"))) == 1


def test_moves_of_data_read_one_of_their_elements() -> None:
    """A tensor concatenated with itself five times loads one element, wherever it is read."""

    def body(emit: Any, x: Any) -> Any:
        return R.nn.max_pool2d(emit(R.concat([x] * 5, 1)), (3, 3), (1, 1), layout="NHWC")

    assert kernels_of(build(body, (SHAPE, "float16"))) == 1


@pytest.mark.parametrize(("height", "kernels"), [(8, 1), (16, 2)])
def test_windows_and_the_reduction_of_a_long_row(height: int, kernels: int) -> None:
    """Rows of 16,384 elements are in the registers or the shared memory of a block, which leaves windows no cache."""

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.subtract(emit(R.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1), layout="NHWC")), x))
        return R.subtract(y, emit(R.mean(y, [1, 2, 3], keepdims=True)))

    assert kernels_of(build(body, ((40, height, 32, 32), "float32"))) == kernels
