# SPDX-License-Identifier: Apache-2.0
"""Terms of a window are loaded by vectors and added up group by group, wherever the values of a row are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

import tvm_stitch
from stitch_testing.random.graphs import emulated_target
from tests.codegen.gpu.memory.test_piecewise_loads import widest_load
from tests.graph.helpers import Spec, build, cuda_source, draw, emulated
from tvm_stitch.device import GPUS

Emit = Callable[[Any], Any]


def mixer(pooled: Callable[[Any], Any], normed: bool) -> Callable[..., Any]:
    """Return an image plus a scaled pool of another one, with a norm of whole images behind it if ``normed``."""

    def body(emit: Emit, image: Any, residual: Any, scale: Any) -> Any:
        y = emit(R.subtract(emit(pooled(image)), image))
        y = emit(R.add(residual, emit(R.multiply(y, scale))))
        if not normed:
            return R.nn.relu(y)
        y = emit(R.astype(y, "float32"))
        apart = emit(R.subtract(y, emit(R.mean(y, [1, 2, 3], keepdims=True))))
        return R.multiply(apart, emit(R.rsqrt(emit(R.variance(y, [1, 2, 3], keepdims=True)))))

    return body


def mixed(pool: str, normed: bool, inputs: list[np.ndarray]) -> np.ndarray:
    """Return what :func:`mixer` does in float64."""
    image, residual, scale = (x.astype("float64") for x in inputs)
    y = residual + (pool_of(pool, image) - image) * scale
    if not normed:
        return np.maximum(y, 0)
    axes = (1, 2, 3)
    result: np.ndarray = (y - y.mean(axes, keepdims=True)) / np.sqrt(y.var(axes, keepdims=True))
    return result


def pool_of(pool: str, image: np.ndarray) -> np.ndarray:
    """Return the mean or the maximum of the neighbours of each pixel, without those behind the border."""
    nothing = 0.0 if pool == "mean" else -np.inf
    around = np.pad(image, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=nothing)
    there = np.pad(np.ones_like(image), [(0, 0), (1, 1), (1, 1), (0, 0)])
    rows, columns = image.shape[1:3]
    taps = [(i, j) for i in range(3) for j in range(3)]
    values = np.stack([around[:, i : i + rows, j : j + columns] for i, j in taps])
    if pool == "largest":
        return values.max(0)
    counts: np.ndarray = sum(there[:, i : i + rows, j : j + columns] for i, j in taps)
    return values.sum(0) / counts


POOLS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: R.nn.avg_pool2d(x, [3, 3], [1, 1], [1, 1], layout="NHWC", count_include_pad=False),
    "largest": lambda x: R.nn.max_pool2d(x, [3, 3], [1, 1], [1, 1], layout="NHWC"),
}


def check(shape: tuple[int, ...], dtype: str, pool: str, normed: bool) -> str:
    """Compare the kernel in the emulator with float64, and return its source."""
    specs: list[Spec] = [(shape, dtype), (shape, dtype), (shape[-1:], dtype)]
    mod = build(mixer(POOLS[pool], normed), *specs)
    inputs = draw(specs)
    (result,) = emulated(mod, *inputs)
    limit = 2e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(result.astype("float64"), mixed(pool, normed, inputs), rtol=limit, atol=limit)
    return cuda_source(mod)


def planned(shape: tuple[int, ...], dtype: str, pool: str) -> str:
    """Return the plan of the kernel in words."""
    mod = build(mixer(POOLS[pool], True), (shape, dtype), (shape, dtype), (shape[-1:], dtype))
    return tvm_stitch.explain(mod, emulated_target()).verbose()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("pool", list(POOLS))
@pytest.mark.parametrize(
    ("shape", "kept"),
    [((61, 29, 31, 16), ""), ((2, 14, 13, 48), "registers"), ((2, 28, 30, 48), "shared memory")],
)
def test_pools_of_images(
    shape: tuple[int, ...], kept: str, pool: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kept == "shared memory":
        for name, model in list(
            GPUS.items()
        ):  # blocks for each row would fill a whole GPU, and keep it in registers
            monkeypatch.setitem(GPUS, name, replace(model, sms=2).with_choices(window_columns=2**30))
    source = check(shape, dtype, pool, bool(kept))
    assert "window_ptr[" in source and widest_load(source, "x0") == 16
    assert kept == "" or f"kept in {kept}" in planned(shape, dtype, pool)


@pytest.mark.parametrize("channels", [24, 40])
def test_pixels_of_other_widths(channels: int) -> None:
    source = check((33, 29, 31, channels), "float32", "mean", False)
    assert "window_ptr[" in source and widest_load(source, "x0") == 16


def test_a_pool_of_a_sum_reads_two_inputs_in_each_term() -> None:
    def body(emit: Emit, a: Any, b: Any) -> Any:
        return R.nn.relu(emit(POOLS["mean"](emit(R.add(a, b)))))

    specs: list[Spec] = [((9, 29, 31, 16), "float16")] * 2
    inputs = draw(specs)
    (result,) = emulated(build(body, *specs), *inputs)
    a, b = (x.astype("float64") for x in inputs)
    np.testing.assert_allclose(result, np.maximum(pool_of("mean", a + b), 0), rtol=2e-2, atol=2e-2)
