# SPDX-License-Identifier: Apache-2.0
"""Axes of symbolic extents are resized as NumPy does it, on a CPU and in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from tests.graph.helpers import build, emulated, on_llvm, symbol
from tvm_stitch.importers.symbolic import resized_axes
from tvm_stitch.importers.symbolic.resized_axes import number

ROWS = symbol("rows")


def halved(i: Any, old: Any, new: Any) -> Any:
    return number(i) * (number(old) / number(new))


def module(mode: str) -> Any:
    """Return a module that makes rows twice as many, less one."""

    def body(emit: Any, x: Any) -> Any:
        builder = relax.BlockBuilder.current()
        new = ROWS * 2 - 1
        if mode == "nearest":
            return resized_axes.nearest(builder, x, 0, new, lambda *at: tirx.floor(halved(*at)))
        return resized_axes.linear(builder, x, 0, new, halved)

    return build(body, ((ROWS, 3), "float32"))


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("rows", [1, 5])
def test_numbers(run: Any, mode: str, rows: int) -> None:
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype("float32")
    (got,) = run(module(mode), x)
    at = np.arange(2 * rows - 1) * (rows / (2 * rows - 1))
    below, above = np.floor(at).astype(int), np.minimum(np.floor(at).astype(int) + 1, rows - 1)
    share = (at - np.floor(at))[:, None] if mode == "linear" else 0.0
    np.testing.assert_allclose(got, x[below] + (x[above] - x[below]) * share, rtol=1e-5, atol=1e-5)
