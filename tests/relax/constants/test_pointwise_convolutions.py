# SPDX-License-Identifier: Apache-2.0
"""Convolutions of one position become matmuls with the batch norm, residual and ReLU that follow them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build
from tests.relax.library.matmul_calls import calls, mode, operators, run
from tvm_stitch import StitchConfig
from tvm_stitch.compute.cuda import library
from tvm_stitch.records.decisions import without_decisions
from tvm_stitch.relax.constants.pointwise_convolutions import PointwiseConvolutions
from tvm_stitch.relax.library.matmuls import LibraryMatmuls

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
F16, F32 = "float16", "float32"
Emit = Callable[..., Any]


def numbers(*shape: int, low: float = -1.0, dtype: str = F16) -> np.ndarray:
    drawn = np.random.default_rng(sum(shape)).uniform(low, 1.0, shape)
    return drawn.astype(F32).astype(dtype)


def pointwise(emit: Emit, x: Any, results: int, **attrs: Any) -> Any:
    """Build a convolution of one position, channels last."""
    channels = int(x.ty.shape.values[-1])
    rank = len(x.ty.shape.values)
    weight = relax.const(numbers(results, *[1] * (rank - 2), channels))
    layouts = {3: ("NWC", "OWI"), 4: ("NHWC", "OHWI"), 5: ("NDHWC", "ODHWI")}[rank]
    convolution = {3: R.nn.conv1d, 4: R.nn.conv2d, 5: R.nn.conv3d}[rank]
    return emit(
        convolution(x, weight, data_layout=layouts[0], kernel_layout=layouts[1], out_dtype=F16, **attrs)
    )


def normed(emit: Emit, x: Any, low: float = 0.5) -> Any:
    """Build a batch norm of constants, in float32. Its scale is transposed, as the passes before leave it."""
    channels, rank = int(x.ty.shape.values[-1]), len(x.ty.shape.values)
    first = (1, channels, *[1] * (rank - 2))
    last = [0, *range(2, rank), 1]
    scale = emit(R.permute_dims(relax.const(numbers(*first, low=low, dtype=F32)), last))
    shift = emit(R.permute_dims(relax.const(numbers(*first, dtype=F32)), last))
    scaled = emit(R.multiply(emit(R.astype(x, F32)), scale))
    return emit(R.add(shift, scaled))


def block(emit: Emit, x: Any, window: int = 3) -> Any:
    """Build a bottleneck: a convolution of one position on each side, with a shortcut of another width."""
    y = emit(R.astype(emit(R.nn.relu(normed(emit, pointwise(emit, x, 8)))), F16))
    weight = relax.const(numbers(16, window, window, 8))
    y = emit(R.nn.conv2d(y, weight, padding=1, data_layout="NHWC", kernel_layout="OHWI", out_dtype=F16))
    y = emit(R.astype(emit(R.nn.relu(y)), F16))
    shortcut = emit(R.astype(normed(emit, pointwise(emit, x, 24)), F16))
    y = normed(emit, pointwise(emit, y, 24))
    y = emit(R.astype(emit(R.nn.relu(emit(R.add(y, emit(R.astype(shortcut, F32)))))), F16))
    return pointwise(emit, y, 8)


def rewritten(mod: tvm.IRModule, rounds: bool = True) -> tvm.IRModule:
    return PointwiseConvolutions(lambda: True, CHOICES, rounds)(mod)


def check_equal(mod: tvm.IRModule, made: tvm.IRModule, x: np.ndarray) -> None:
    wanted, result = (run(each, x).astype("float64") for each in (mod, made))
    assert wanted.shape == result.shape and np.abs(wanted - result).max() < 4e-3 * np.abs(wanted).max()


def test_a_bottleneck_has_matmuls_with_epilogues(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = build(block, ((2, 5, 7, 16), F16))
    made = rewritten(mod)
    assert operators(made).count("nn.conv2d") == 2  # the window of 3, and the last one, which nothing follows
    assert operators(made).count("matmul") == 3 and "multiply" not in operators(made)
    check_equal(mod, made, numbers(2, 5, 7, 16))

    monkeypatch.setattr(library.CUBLASLT, "missing", lambda: None)
    products = without_decisions(LibraryMatmuls(CUDA, StitchConfig(compute="libraries"))(made))
    assert sorted(mode(c) for c in calls(products)) == sorted(["bias relu", "bias", "bias residual relu"])
    assert "add" not in operators(products)


@pytest.mark.parametrize("shape", [(2, 9, 16), (3, 5, 7, 24), (1, 3, 2, 5, 8)], ids=str)
def test_any_number_of_axes(shape: tuple[int, ...]) -> None:
    def body(emit: Emit, x: Any) -> Any:
        return R.astype(emit(R.nn.relu(normed(emit, pointwise(emit, x, 8)))), F16)

    mod = build(body, (shape, F16))
    made = rewritten(mod)
    assert operators(made).count("matmul") == 1 and not any("conv" in name for name in operators(made))
    check_equal(mod, made, numbers(*shape))


@pytest.mark.parametrize("axes", [(1, 1, 1, 1, 8), (1, 1, 1, 1, 1)], ids=str)
def test_a_constant_with_more_axes_is_none_of_channels(axes: tuple[int, ...]) -> None:
    def body(emit: Emit, x: Any) -> Any:
        return R.nn.relu(emit(R.add(pointwise(emit, x, 8), relax.const(numbers(*axes)))))

    mod = build(body, ((2, 5, 7, 16), F16))
    check_equal(mod, rewritten(mod), numbers(2, 5, 7, 16))


def silu(emit: Emit, x: Any) -> Any:
    return R.astype(emit(R.nn.silu(normed(emit, pointwise(emit, x, 8)))), F16)


def plain(emit: Emit, x: Any) -> Any:
    return pointwise(emit, x, 8)


def odd(emit: Emit, x: Any) -> Any:
    return R.astype(normed(emit, pointwise(emit, x, 9)), F16)


def strided(emit: Emit, x: Any) -> Any:
    return R.astype(normed(emit, pointwise(emit, x, 8, strides=2)), F16)


def padded(emit: Emit, x: Any) -> Any:
    return R.astype(normed(emit, pointwise(emit, x, 8, padding=1)), F16)


def read_by_a_norm(emit: Emit, x: Any) -> Any:
    return R.nn.softmax(emit(R.astype(normed(emit, pointwise(emit, x, 8)), F16)))


def wide_result(emit: Emit, x: Any) -> Any:
    return normed(emit, pointwise(emit, x, 8))


def tiny_scale(emit: Emit, x: Any) -> Any:
    """Scaled weights would be next to zero, where a half type has few digits."""
    y = emit(R.multiply(emit(R.astype(pointwise(emit, x, 8), F32)), relax.const(1e-7, F32)))
    return R.astype(emit(R.add(y, relax.const(np.ones(8, F32)))), F16)


def read_twice(emit: Emit, x: Any) -> list[Any]:
    y = pointwise(emit, x, 8)
    return [R.astype(normed(emit, y), F16), R.sigmoid(y)]


def divided(emit: Emit, x: Any) -> Any:
    """Divide the channels: the reader's result is a tuple."""
    return relax.TupleGetItem(emit(R.split(pointwise(emit, x, 8), 2, -1)), 0)


OTHERS = [silu, plain, odd, strided, padded, read_by_a_norm, wide_result, tiny_scale, read_twice, divided]


@pytest.mark.parametrize("body", OTHERS)
def test_others_stay(body: Any) -> None:
    mod = build(body, ((2, 5, 7, 16), F16))
    assert "matmul" not in operators(rewritten(mod))


def test_a_constant_for_each_row_is_none_for_each_channel() -> None:
    """The rows of the image are as many as its channels."""

    def body(emit: Emit, x: Any) -> Any:
        y = emit(R.add(pointwise(emit, x, 16), relax.const(numbers(16, 1))))
        return pointwise(emit, emit(R.nn.relu(y)), 16)

    mod = build(body, ((1, 4, 16, 8), F16))
    (x,) = (numbers(1, 4, 16, 8),)
    made = PointwiseConvolutions(lambda: True, CHOICES, True)(mod)
    np.testing.assert_allclose(run(made, x), run(mod, x), 2e-2, 2e-2)


def test_weights_are_not_rounded_again_unless_that_is_asked_for() -> None:
    mod = build(block, ((2, 5, 7, 16), F16))
    assert "matmul" not in operators(rewritten(mod, rounds=False))


@pytest.mark.parametrize("scale", [None, 4.0, -0.5])
def test_a_bias_rounds_no_weight(scale: float | None) -> None:
    def body(emit: Emit, x: Any) -> Any:
        y = emit(R.astype(pointwise(emit, x, 8), F32))
        y = y if scale is None else emit(R.multiply(y, relax.const(scale, F32)))
        y = emit(R.add(y, relax.const(numbers(8, dtype=F32))))
        return R.astype(emit(R.nn.relu(y)), F16)

    mod = build(body, ((2, 5, 7, 16), F16))
    made = rewritten(mod, rounds=False)
    assert operators(made).count("matmul") == 1
    check_equal(mod, made, numbers(2, 5, 7, 16))


def test_nothing_changes_without_the_library() -> None:
    mod = build(block, ((2, 5, 7, 16), F16))
    assert "matmul" not in operators(PointwiseConvolutions(lambda: False, CHOICES)(mod))
