# SPDX-License-Identifier: Apache-2.0
"""Kernels with lanes along columns compute values once that all segments share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, on_llvm, symbol
from tvm_stitch.relax import pipeline

TARGET = tvm.target.Target("llvm")
Shape = tuple[Any, ...]
CHAIN = 3


def scaled(x: Shape, shared: Shape) -> tvm.IRModule:
    """Return ``x * s + x`` and its negative, with ``s`` of a chain of light operators, broadcast over channels."""

    def body(emit: Any, x: Any, s: Any) -> list[Any]:
        for _ in range(CHAIN):
            s = emit(R.floor(emit(R.multiply(s, relax.const(0.75, "float32")))))
        y = emit(R.add(emit(R.multiply(x, s)), x))
        return [y, emit(R.negative(y))]

    return build(body, (x, "float32"), (shared, "float32"))


def expected(x: np.ndarray, shared: np.ndarray) -> np.ndarray:
    s = shared.astype("float64")
    for _ in range(CHAIN):
        s = np.floor(s * 0.75)
    return x * s + x


def draw(x: Shape, shared: Shape) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal(x).astype("float32"), rng.integers(-50, 50, shared).astype("float32")


def check(mod: tvm.IRModule, x: Shape, shared: Shape) -> None:
    a, s = draw(x, shared)
    found, wanted = on_llvm(mod, a, s), expected(a, s)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[1], -wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("size", [(16, 16), (160, 160)])
def test_values_that_segments_share_are_computed_once_for_several(size: tuple[int, int], images: int) -> None:
    """Tasks with several whole segments, and tasks with slices of several."""
    with TARGET:
        made = pipeline(TARGET)(scaled((images, 40, *size), (images, 1, *size)))
    (func,) = (func for func in made.functions.values() if isinstance(func, tvm.tirx.PrimFunc))
    once, repeated = func.script().split("for outer in")
    assert once.count("T.floor") == CHAIN and "T.floor" not in repeated
    # Of one image, the last block has the 8 segments that are left. Blocks of 10 divide two images.
    assert repeated.startswith(" range(T.min(T.int64(16), " if images == 1 else " range(T.int64(10))")


SHAPES = [
    ((1, 40, 16, 16), (1, 1, 16, 16)),
    ((3, 5, 16, 17), (3, 1, 16, 17)),  # vectors that overlap, several images
    ((1, 19, 160, 160), (1, 1, 160, 160)),  # a task has slices of segments, and the last block is smaller
    ((2, 20, 160, 160), (2, 1, 160, 160)),  # no block has segments of two images
    ((2, 19, 16, 16), (2, 1, 16, 16)),
    ((1, 3, 113, 127), (1, 1, 113, 127)),
]


@pytest.mark.parametrize(("x", "shared"), SHAPES)
def test_values_are_right(x: Shape, shared: Shape) -> None:
    check(scaled(x, shared), x, shared)


def test_images_of_symbolic_size() -> None:
    n, c, h = symbol("n"), symbol("c"), symbol("h")
    mod = scaled((n, c, h, 24), (n, 1, h, 24))
    for images, channels, height in ((1, 1, 1), (2, 17, 5), (1, 33, 400)):
        check(mod, (images, channels, height, 24), (images, 1, height, 24))
