# SPDX-License-Identifier: Apache-2.0
"""The bias of a convolution is added behind the product that reads the convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tests.relax.library.matmul_calls import run
from tvm_stitch.relax.constants.shifted_operands import ShiftedOperands
from tvm_stitch.relax.rewriting.contents import contents_of

F16, F32 = "float16", "float32"
Emit = Callable[..., Any]
NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_dtype": F16}


def numbers(*shape: int, dtype: str = F16) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(F32).astype(dtype)


def depthwise(emit: Emit, x: Any, wide: bool = True) -> Any:
    """Build a depthwise convolution with a bias, which is added in float32 if ``wide``."""
    y = emit(R.nn.conv2d(x, relax.const(numbers(8, 3, 3, 1)), padding=1, groups=8, **NHWC))
    if not wide:
        return emit(R.add(y, relax.const(numbers(1, 1, 1, 8))))
    bias = emit(R.permute_dims(relax.const(numbers(1, 8, 1, 1, dtype=F32)), [0, 2, 3, 1]))
    return emit(R.astype(emit(R.add(bias, emit(R.astype(y, F32)))), F16))


def pointwise(emit: Emit, x: Any, window: int = 1, **attrs: Any) -> Any:
    return emit(R.nn.conv2d(x, relax.const(numbers(16, window, window, 8)), **NHWC, **attrs))


def separable(emit: Emit, x: Any) -> Any:
    """Build the separable convolution of Xception, with a bias and ReLU behind it."""
    y = emit(R.astype(pointwise(emit, depthwise(emit, x)), F32))
    return R.nn.relu(emit(R.add(y, relax.const(numbers(1, 1, 1, 16, dtype=F32)))))


def two_readers(emit: Emit, x: Any) -> Any:
    y = depthwise(emit, x, wide=False)
    return R.multiply(pointwise(emit, y), emit(R.nn.relu(pointwise(emit, y))))


def of_rows(emit: Emit, x: Any) -> Any:
    rows = emit(R.reshape(depthwise(emit, x), [60, 8]))
    return R.nn.gelu(emit(R.matmul(rows, relax.const(numbers(8, 16)), out_dtype=F16)))


def of_a_window(emit: Emit, x: Any) -> Any:
    return R.nn.relu(pointwise(emit, depthwise(emit, x), 2))


def additions(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """Return the shapes of the sums, in order."""
    return [
        tuple(int(extent) for extent in call.ty.shape)
        for call in contents_of(mod["main"]).get("relax.add", ())
    ]


@pytest.mark.parametrize(
    ("body", "sums"),
    [
        (separable, [(2, 5, 6, 16)]),
        (two_readers, [(2, 5, 6, 16)] * 2),
        (of_rows, [(60, 16)]),
        (of_a_window, [(2, 4, 5, 16)]),
    ],
)
def test_the_bias_is_added_to_the_results(body: Any, sums: list[tuple[int, ...]]) -> None:
    mod = build(body, ((2, 5, 6, 8), F16))
    made = ShiftedOperands()(mod)
    assert additions(made) == sums
    x = numbers(2, 5, 6, 8)
    wanted, got = (run(each, x).astype("float64") for each in (mod, made))
    assert np.abs(wanted - got).max() < 4e-3 * np.abs(wanted).max()


def bordered(emit: Emit, x: Any) -> Any:
    """Convolve with a border of zeros, to which no bias is added."""
    return R.nn.relu(pointwise(emit, depthwise(emit, x), 3, padding=1))


def read_by_a_kernel(emit: Emit, x: Any) -> Any:
    y = depthwise(emit, x)
    return R.concat([pointwise(emit, y), emit(R.nn.relu(y))], axis=3)


def activated(emit: Emit, x: Any) -> Any:
    return R.nn.relu(pointwise(emit, emit(R.nn.relu(depthwise(emit, x)))))


def of_another_kernel(emit: Emit, x: Any) -> Any:
    """Add a bias in the kernel of an exponential."""
    return R.nn.relu(pointwise(emit, emit(R.add(emit(R.exp(x)), relax.const(numbers(8))))))


@pytest.mark.parametrize("body", [bordered, read_by_a_kernel, activated, of_another_kernel])
def test_other_sums_stay(body: Any) -> None:
    mod = build(body, ((2, 5, 6, 8), F16))
    tvm.ir.assert_structural_equal(ShiftedOperands()(mod), mod)


def test_exact_types_stay() -> None:
    def body(emit: Emit, x: Any) -> Any:
        attrs = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
        y = emit(R.nn.conv2d(x, relax.const(numbers(8, 1, 1, 8, dtype=F32)), **attrs))
        y = emit(R.add(y, relax.const(numbers(8, dtype=F32))))
        return R.nn.conv2d(y, relax.const(numbers(16, 1, 1, 8, dtype=F32)), **attrs)

    mod = build(body, ((2, 5, 6, 8), F32))
    tvm.ir.assert_structural_equal(ShiftedOperands()(mod), mod)
