# SPDX-License-Identifier: Apache-2.0
"""Convolutions without the taps that read padding only: fewer products, the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, on_llvm
from tvm_stitch.relax.layout.padded_taps import PaddedTaps, taps

RNG = np.random.default_rng()
MAKE = {1: R.nn.conv1d, 2: R.nn.conv2d, 3: R.nn.conv3d}


def convolution(
    extents: tuple[int, ...], weight: np.ndarray, groups: int = 1, **options: Any
) -> tvm.IRModule:
    channels = weight.shape[1] * groups
    held = relax.const(weight, "float32")
    make = MAKE[len(extents)]
    return build(
        lambda emit, x: make(x, held, groups=groups, **options), ((2, channels, *extents), "float32")
    )


def windows(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """Return the windows of all convolutions of a module."""
    found = []
    for value in relax.analysis.get_var2val(mod["main"]).values():
        if isinstance(value, relax.Call) and "conv" in str(getattr(value.op, "name", "")):
            found.append(tuple(int(e) for e in value.args[1].ty.shape.values[2:]))
    return found


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def expected(x: np.ndarray, weight: np.ndarray, groups: int, options: dict[str, Any]) -> np.ndarray:
    torch = pytest.importorskip("torch")
    function = getattr(torch.nn.functional, f"conv{x.ndim - 2}d")
    padding = options.pop("padding", 0)
    before, after = (padding[: x.ndim - 2], padding[x.ndim - 2 :]) if padding else ([0] * 3, [0] * 3)
    widths = [(0, 0), (0, 0), *zip(before, after)]
    data = torch.tensor(np.pad(x.astype("float64"), widths))
    options = {{"strides": "stride"}.get(k, k): v for k, v in options.items()}
    return function(data, torch.tensor(weight.astype("float64")), groups=groups, **options).numpy()


CASES = [
    ((32, 32), (3, 3), 1, {"padding": [36, 36, 36, 36], "dilation": [36, 36]}, (1, 1)),
    ((20, 32), (3, 3), 1, {"padding": [24, 24, 24, 24], "dilation": [24, 24]}, (1, 3)),
    ((9,), (5,), 1, {"padding": [8, 8], "dilation": [4]}, (5,)),
    ((9,), (5,), 1, {"padding": [20, 20], "dilation": [10]}, (1,)),
    ((7, 7), (3, 3), 4, {"padding": [7, 7, 7, 7], "dilation": [7, 7], "strides": [2, 2]}, (1, 1)),
    ((4, 5, 6), (3, 3, 3), 1, {"padding": [4, 5, 6, 4, 5, 6], "dilation": [4, 5, 6]}, (1, 1, 1)),
    ((6, 6), (3, 3), 1, {"padding": [6, 0, 0, 0], "dilation": [3, 1]}, (2, 3)),
    ((5, 5), (3, 3), 1, {"padding": [1, 1, 1, 1]}, (3, 3)),
]


@pytest.mark.parametrize(("extents", "window", "groups", "options", "left"), CASES)
def test_numbers(extents: Any, window: Any, groups: int, options: dict[str, Any], left: Any) -> None:
    weight = draw(8, 4 if groups == 1 else 1, *window)
    mod = convolution(extents, weight, groups, **options)
    assert windows(PaddedTaps()(mod)) == [left]
    x = draw(2, weight.shape[1] * groups, *extents)
    (got,) = on_llvm(mod, x)
    np.testing.assert_allclose(got, expected(x, weight, groups, dict(options)), rtol=1e-5, atol=1e-5)


def test_weights_that_are_not_finite_or_not_constant_stay() -> None:
    weight = draw(8, 4, 3, 3)
    weight[0, 0, 0, 0] = np.inf
    options = {"padding": [36, 36, 36, 36], "dilation": [36, 36]}
    mod = convolution((32, 32), weight, **options)
    tvm.ir.assert_structural_equal(PaddedTaps()(mod), mod)
    given = build(
        lambda emit, x, w: R.nn.conv2d(x, w, **options),
        ((2, 4, 32, 32), "float32"),
        ((8, 4, 3, 3), "float32"),
    )
    tvm.ir.assert_structural_equal(PaddedTaps()(given), given)


def test_taps_are_those_that_read_the_image() -> None:
    """Held against a count of all positions, for many windows."""
    for _ in range(300):
        extent, window, stride, dilation = (int(RNG.integers(1, most)) for most in (9, 6, 4, 8))
        before, after = (int(RNG.integers(0, 20)) for _ in range(2))
        positions = (extent + before + after - dilation * (window - 1) - 1) // stride + 1
        reads = [
            tap
            for tap in range(window)
            if any(0 <= at * stride + tap * dilation - before < extent for at in range(positions))
        ]
        assert taps(extent, window, stride, dilation, (before, after)) == reads
