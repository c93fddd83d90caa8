# SPDX-License-Identifier: Apache-2.0
"""Scales of batch norms become part of float32 weights, where the norm alone reads the convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tests.relax.modules import operators
from tvm_stitch.relax.precision.half import in_half_precision
from tvm_stitch.relax.precision.scaled_weights import with_scaled_weights

C, K = 3, 5


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + seed).standard_normal(shape).astype("float32")


def norm(emit: Any, x: Any, axis: int = 1, **attrs: Any) -> Any:
    parameters = [draw(K, seed=1) + 2, draw(K, seed=2), draw(K, seed=3), np.abs(draw(K, seed=4)) + 0.1]
    options = {"training": False, **attrs}
    made = emit(R.nn.batch_norm(x, *(relax.const(p) for p in parameters), axis=axis, **options))
    return emit(relax.TupleGetItem(made, 0))


def of(
    shape: tuple[int, ...], weight: np.ndarray, operator: Any, axis: int, attrs: Any, **of_norm: Any
) -> Any:
    def body(emit: Any, x: Any) -> Any:
        return emit(R.nn.relu(norm(emit, emit(operator(x, relax.const(weight), **attrs)), axis, **of_norm)))

    return build(body, (shape, "float32"))


def run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    mod = relax.transform.DecomposeOpsForInference()(mod)
    return relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.parametrize(
    ("shape", "weight", "operator", "axis", "attrs", "of_norm"),
    [
        ((2, C, 6, 7), (K, C, 3, 3), R.nn.conv2d, 1, {}, {}),
        ((2, C, 6, 7), (K, C, 3, 3), R.nn.conv2d, 1, {"padding": 1}, {"scale": False}),
        ((2, C, 6), (K, C, 3), R.nn.conv1d, 1, {}, {"center": False}),
        ((2, 6, 7, C), (K, 3, 3, C), R.nn.conv2d, 3, {"data_layout": "NHWC", "kernel_layout": "OHWI"}, {}),
        ((2, 6, 7, C), (3, 3, C, K), R.nn.conv2d, -1, {"data_layout": "NHWC", "kernel_layout": "HWIO"}, {}),
    ],
)
def test_a_norm_becomes_a_bias(
    shape: tuple[int, ...], weight: tuple[int, ...], operator: Any, axis: int, attrs: Any, of_norm: Any
) -> None:
    mod = of(shape, draw(*weight), operator, axis, attrs, **of_norm)
    made = with_scaled_weights(mod)
    assert operators(made) == [f"nn.{operator.__name__}", "add", "nn.relu"]
    x = draw(*shape)
    np.testing.assert_allclose(run(made, x), run(mod, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reshaped", [False, True])
@pytest.mark.parametrize("axis", [1, 3])
def test_the_norm_of_a_convolution_with_a_bias(reshaped: bool, axis: int) -> None:
    """Convolutions of StarNet have a bias in front of the norm. The importer reshapes it."""
    shape, weight = ((2, C, 6, 7), (K, C, 3, 3)) if axis == 1 else ((2, 6, 7, C), (K, 3, 3, C))
    attrs = {} if axis == 1 else {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    extents = [1, K, 1, 1] if axis == 1 else [1, 1, 1, K]

    def body(emit: Any, x: Any) -> Any:
        bias = relax.const(draw(K) if reshaped else draw(K).reshape(extents))
        bias = emit(R.reshape(bias, extents)) if reshaped else bias
        y = emit(R.add(emit(R.nn.conv2d(x, relax.const(draw(*weight)), padding=1, **attrs)), bias))
        return emit(R.nn.relu(norm(emit, y, axis)))

    mod = build(body, (shape, "float32"))
    made = with_scaled_weights(mod)
    assert operators(made) == ["nn.conv2d", "add", "nn.relu"]
    x = draw(*shape)
    np.testing.assert_allclose(run(made, x), run(mod, x), rtol=1e-5, atol=1e-5)


def test_half_models_get_scaled_weights() -> None:
    mod = of((2, C, 6, 7), draw(K, C, 3, 3), R.nn.conv2d, 1, {})
    assert "nn.batch_norm" not in operators(in_half_precision(mod, "float16", "half"))
    assert "nn.batch_norm" in operators(in_half_precision(mod, "float16"))


def read_twice(emit: Any, x: Any) -> Any:
    y = emit(R.nn.conv2d(x, relax.const(draw(K, C, 3, 3))))
    return emit(R.add(y, norm(emit, y)))


def biased_and_read_twice(emit: Any, x: Any) -> Any:
    y = emit(R.nn.conv2d(x, relax.const(draw(K, C, 3, 3))))
    return emit(R.add(y, norm(emit, emit(R.add(y, relax.const(draw(1, K, 1, 1)))))))


def of_a_sum_with_a_row(emit: Any, x: Any) -> Any:
    y = emit(R.nn.conv2d(x, relax.const(draw(K, C, 3, 3))))
    return norm(emit, emit(R.add(y, relax.const(draw(1, 1, 1, K)))))


OTHERS = [biased_and_read_twice, of_a_sum_with_a_row]


def in_training(emit: Any, x: Any) -> Any:
    return norm(emit, emit(R.nn.conv2d(x, relax.const(draw(K, C, 3, 3)))), training=True)


def of_a_computed_weight(emit: Any, x: Any) -> Any:
    return norm(emit, emit(R.nn.conv2d(x, emit(R.exp(relax.const(draw(K, C, 3, 3)))))))


def of_columns(emit: Any, x: Any) -> Any:
    return norm(emit, emit(R.nn.conv2d(x, relax.const(draw(K, C, 3, 3)))), 3)


def of_other_operators(emit: Any, x: Any) -> Any:
    return norm(emit, emit(R.nn.relu(emit(R.nn.conv2d(x, relax.const(draw(K, C, 3, 3)))))))


@pytest.mark.parametrize(
    "body", [read_twice, in_training, of_a_computed_weight, of_columns, of_other_operators, *OTHERS]
)
def test_other_norms_stay(body: Any) -> None:
    mod = build(body, ((2, C, 6, 7), "float32"))
    tvm.ir.assert_structural_equal(with_scaled_weights(mod), mod)
