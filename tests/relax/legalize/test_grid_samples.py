# SPDX-License-Identifier: Apache-2.0
"""Samples at points of a grid are PyTorch's, on both targets, and their kernels are small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tvm.relax import op as R

from tests.graph.helpers import build, emulated, on_llvm, symbol
from tvm_stitch.relax.legalize.operators import legalize

CASES = [(padding, aligned) for padding in ("zeros", "border", "reflection") for aligned in (False, True)]


def sampled(emit: Any, x: Any, grid: Any, padding: str, aligned: bool, method: str = "bicubic") -> list[Any]:
    return [R.image.grid_sample(x, grid, method, "NCHW", padding, aligned)]


def draw(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(height + width)
    x, grid = rng.standard_normal((2, 3, height, width)), rng.random((2, 2, 5, 7)) * 6 - 3
    return x.astype("float32"), grid.astype("float32")


def expected(x: np.ndarray, grid: np.ndarray, padding: str, aligned: bool) -> np.ndarray:
    points = torch.tensor(grid).double().permute(0, 2, 3, 1)
    return F.grid_sample(torch.tensor(x).double(), points, "bicubic", padding, aligned).numpy()


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize(("padding", "aligned"), CASES)
def test_samples_are_those_of_pytorch(run: Any, padding: str, aligned: bool) -> None:
    x, grid = draw(6, 9)
    mod = build(
        lambda emit, a, b: sampled(emit, a, b, padding, aligned),
        (x.shape, "float32"),
        (grid.shape, "float32"),
    )
    np.testing.assert_allclose(
        run(mod, x, grid)[0], expected(x, grid, padding, aligned), rtol=2e-4, atol=2e-4
    )


@pytest.mark.parametrize(("padding", "aligned"), CASES)
def test_images_of_one_pixel(padding: str, aligned: bool) -> None:
    x, grid = draw(1, 1)
    mod = build(
        lambda emit, a, b: sampled(emit, a, b, padding, aligned),
        (x.shape, "float32"),
        (grid.shape, "float32"),
    )
    np.testing.assert_allclose(
        on_llvm(mod, x, grid)[0], expected(x, grid, padding, aligned), rtol=1e-4, atol=1e-4
    )


def test_symbolic_sizes() -> None:
    h, w = symbol("h"), symbol("w")
    mod = build(
        lambda emit, a, b: sampled(emit, a, b, "reflection", False),
        ((2, 3, h, w), "float32"), ((2, 2, 5, 7), "float32"),
    )  # fmt: skip
    for size in ((4, 8), (1, 3)):
        x, grid = draw(*size)
        wanted = expected(x, grid, "reflection", False)
        np.testing.assert_allclose(on_llvm(mod, x, grid)[0], wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_points_that_are_no_numbers_stay_inside_of_an_image(padding: str) -> None:
    x, grid = draw(6, 9)
    grid[0, 0, 0, :3] = np.nan, np.inf, -1e30
    mod = build(
        lambda emit, a, b: sampled(emit, a, b, padding, False), (x.shape, "float32"), (grid.shape, "float32")
    )
    found = on_llvm(mod, x, grid)[0]
    np.testing.assert_allclose(found[1], expected(x, grid, padding, False)[1], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("padding", ["zeros", "reflection"])
@pytest.mark.parametrize("method", ["bicubic", "bilinear", "nearest"])
def test_the_function_is_small(method: str, padding: str) -> None:
    """TVM's has more than 100,000 characters with reflected coordinates, and took a minute to compile."""
    mod = build(
        lambda emit, a, b: sampled(emit, a, b, padding, False, method),
        ((1, 3, 8, 8), "float32"),
        ((1, 2, 4, 4), "float32"),
    )
    made = legalize("Legalize")(mod)["grid_sample"].script()
    assert len(made) < 35_000 and "axis_0_position_0" in made


def of_volumes(emit: Any, x: Any, grid: Any, padding: str, aligned: bool, method: str) -> list[Any]:
    return [R.image.grid_sample(x, grid, method, "NCDHW", padding, aligned)]


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
@pytest.mark.parametrize(("padding", "aligned"), CASES)
def test_linear_and_nearest_samples_of_images_and_volumes(padding: str, aligned: bool, method: str) -> None:
    rng = np.random.default_rng(1)
    for sizes, points in (((6, 9), (5, 7)), ((4, 3, 5), (2, 3, 4))):
        x = rng.standard_normal((2, 3, *sizes)).astype("float32")
        grid = (rng.random((2, len(sizes), *points)) * 6 - 3).astype("float32")
        make = sampled if len(sizes) == 2 else of_volumes
        mod = build(
            lambda emit, a, b, make=make: make(emit, a, b, padding, aligned, method),
            (x.shape, "float32"),
            (grid.shape, "float32"),
        )
        at = torch.tensor(np.moveaxis(grid, 1, -1))
        wanted = F.grid_sample(torch.tensor(x).double(), at.double(), method, padding, aligned).numpy()
        np.testing.assert_allclose(on_llvm(mod, x, grid)[0], wanted, rtol=2e-4, atol=2e-4)


def test_infinite_pixels_outside_of_a_point_do_not_count() -> None:
    x, grid = draw(6, 9)
    x[:, :, 0, 0], grid[:] = np.inf, -3.0
    mod = build(
        lambda emit, a, b: sampled(emit, a, b, "zeros", False), (x.shape, "float32"), (grid.shape, "float32")
    )
    np.testing.assert_array_equal(on_llvm(mod, x, grid)[0], 0.0)


@pytest.mark.parametrize("method", ["bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_samples_of_other_types_keep_the_type(dtype: str, method: str) -> None:
    """Coordinates in float16 were off by parts of a pixel."""
    x, grid = (each.astype(dtype) for each in draw(61, 93))
    mod = build(
        lambda emit, a, b: sampled(emit, a, b, "zeros", False, method), (x.shape, dtype), (grid.shape, dtype)
    )
    found = on_llvm(mod, x, grid)[0]
    points = torch.tensor(grid).double().permute(0, 2, 3, 1)
    wanted = F.grid_sample(torch.tensor(x).double(), points, method, "zeros", False).numpy()
    assert found.dtype == dtype
    tolerance = 2e-3 if dtype == "float16" else 1e-9
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
