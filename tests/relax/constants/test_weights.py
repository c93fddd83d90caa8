# SPDX-License-Identifier: Apache-2.0
"""Tensors of one value become constants where a product or a convolution reads them, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax
from tvm.relax import op as R
from tvm.relax.frontend.onnx import from_onnx

from tests.choices import CHOICES
from tests.graph.helpers import build, symbol
from tvm_stitch.cost.choices import Choices
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.constants.weights import ConstantWeights

ONE_VALUE = relax.const(0.25)


def filled(shape: tuple[int, ...], value: float = 0.25, dtype: str = "float32") -> Any:
    return relax.const(np.full(shape, value, dtype), dtype)


def check(before: Any, after: Any, *specs: Any, choices: Choices = CHOICES) -> None:
    tvm.ir.assert_structural_equal(ConstantWeights(choices)(build(before, *specs)), build(after, *specs))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_weight(dtype: str) -> None:
    value = relax.const(3, dtype)
    check(
        lambda emit, x: R.matmul(x, emit(R.broadcast_to(value, (8, 5)))),
        lambda emit, x: R.matmul(x, emit(filled((8, 5), 3, dtype))),
        ((2, 8), dtype),
    )


def test_a_weight_that_is_full() -> None:
    check(
        lambda emit, x: R.nn.conv2d(x, emit(R.full((4, 3, 1, 1), ONE_VALUE, "float32"))),
        lambda emit, x: R.nn.conv2d(x, emit(filled((4, 3, 1, 1)))),
        ((1, 3, 5, 5), "float32"),
    )


def test_a_weight_behind_views() -> None:
    def model(weight: Any) -> Any:
        return lambda emit, x: R.matmul(x, emit(R.reshape(emit(R.permute_dims(emit(weight))), (8, 10))))

    check(model(R.broadcast_to(ONE_VALUE, (20, 4))), model(filled((20, 4))), ((2, 8), "float32"))


N = symbol()


@pytest.mark.parametrize(
    ("body", "spec"),
    [
        (lambda emit, x: R.add(x, emit(R.broadcast_to(ONE_VALUE, (2, 8)))), ((2, 8), "float32")),
        (lambda emit, x: R.matmul(x, emit(R.exp(emit(R.broadcast_to(ONE_VALUE, (8, 5)))))), ((2, 8), "float32")),
        (lambda emit, x: R.matmul(x, emit(R.broadcast_to(filled((5,)), (8, 5)))), ((2, 8), "float32")),
        (lambda emit, x: R.matmul(emit(filled((2, 8))), emit(R.broadcast_to(x, (8, 5)))), ((1, 1), "float32")),
        (lambda emit, x: R.matmul(x, emit(R.broadcast_to(ONE_VALUE, (N, 5)))), ((2, N), "float32")),
        (lambda emit, x: R.matmul(x, emit(R.full((8, 5), ONE_VALUE, "float16"))), ((2, 8), "float16")),
    ],
    ids=["a sum's", "behind an exponential", "of several values", "of no constant", "symbolic", "cast"],
)  # fmt: skip
def test_others_stay(body: Any, spec: Any) -> None:
    check(body, body, spec)


def test_a_weight_that_is_too_large_stays() -> None:
    def body(emit: Any, x: Any) -> Any:
        return R.matmul(x, emit(R.broadcast_to(ONE_VALUE, (8, 5))))

    check(body, body, ((2, 8), "float32"), choices=Choices(largest_filled_weight=8 * 5 * 4 - 1))


def test_onnx_weights_made_by_constant_of_shape() -> None:
    """The convolution and the product have kernels of this package, and the numbers are right."""
    rng = np.random.default_rng()
    x = rng.standard_normal((1, 16, 9, 9)).astype("float32")

    def weight(name: str, shape: list[int], value: float) -> list[Any]:
        held = helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
        sizes = helper.make_tensor("sizes", TensorProto.INT64, [len(shape)], shape)
        return [
            helper.make_node("Constant", [], [f"{name}_shape"], value=sizes),
            helper.make_node("ConstantOfShape", [f"{name}_shape"], [name], value=held),
        ]

    nodes = [
        *weight("k", [32, 16, 3, 3], 0.5),
        helper.make_node("Conv", ["x", "k"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        *weight("w", [10, 32], -0.25),
        helper.make_node("Gemm", ["f", "w"], ["y"], transB=1),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in (("x", x.shape), ("y", (1, 10)))
    ]
    proto = helper.make_model(
        helper.make_graph(nodes, "model", *ends), opset_imports=[helper.make_opsetid("", 17)]
    )
    mod = from_onnx(proto)
    target = tvm.target.Target("llvm")
    executable = tvm.compile(mod, target, relax_pipeline=pipeline(target))
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), (3, 3), (2, 3))
    pooled = 0.5 * windows.sum((1, 4, 5)).mean()
    np.testing.assert_allclose(got, np.full((1, 10), -0.25 * 32 * pooled), rtol=1e-5, atol=1e-5)
    constants = [
        v for v in relax.analysis.get_var2val(ConstantWeights(CHOICES)(mod)["main"]).values()
        if isinstance(v, tvm.ir.GenericConst)
    ]  # fmt: skip
    assert sorted(c.value.numpy().shape for c in constants)[-1] == (32, 16, 3, 3)
    assert count_kernels(mod, target, pipeline(target)).total <= 3
