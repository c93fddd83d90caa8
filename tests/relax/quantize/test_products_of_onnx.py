# SPDX-License-Identifier: Apache-2.0
"""Quantized ONNX models: their products and convolutions are of integers, with ONNX Runtime's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.relax import op as R
from tvm.relax.frontend.onnx import from_onnx

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build
from tests.relax.quantize.product_runs import (
    HERE,
    SCALE,
    VNNI,
    after,
    constant,
    integers,
    quantized_matmul,
    run,
)
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.quantize import products

EMULATED = emulated_target()


# -- ONNX ----------------------------------------------------------------------------------------------------------
def onnx_model(
    nodes: list[Any], constants: dict[str, np.ndarray], shape: list[Any], result: list[Any]
) -> Any:
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def reference(model: Any, x: np.ndarray, optimized: bool) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


def residual_block(shape: list[Any]) -> Any:
    """Build two quantized convolutions, the second with a residual, as ``onnxruntime.quantization`` writes them."""
    rng = np.random.default_rng(3)
    constants = {
        "s": np.float32(0.03),
        "s1": np.float32(0.04),
        "s2": np.float32(0.05),
        "z": np.int8(-7),
        "low": np.int8(-128),
        "z2": np.int8(11),
    }
    nodes = []

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def pair(value: str, scale: str, zero: str) -> str:
        quantized = node("QuantizeLinear", [value, scale, zero], f"{value}_q")
        return node("DequantizeLinear", [quantized, scale, zero], f"{value}_d")

    def convolution(value: str, name: str) -> str:
        constants[f"{name}w"] = rng.integers(-127, 128, (8, 8, 3, 3)).astype("int8")
        constants[f"{name}s"] = rng.uniform(0.001, 0.004, 8).astype("float32")
        constants[f"{name}z"] = np.zeros(8, "int8")
        constants[f"{name}b"] = rng.integers(-2000, 2000, 8).astype("int32")
        constants[f"{name}bs"] = constants[f"{name}s"] * np.float32(0.03)
        constants[f"{name}bz"] = np.zeros(8, "int32")
        weight = node("DequantizeLinear", [f"{name}w", f"{name}s", f"{name}z"], f"{name}wd", axis=0)
        bias = node("DequantizeLinear", [f"{name}b", f"{name}bs", f"{name}bz"], f"{name}bd", axis=0)
        return node("Conv", [value, weight, bias], name, pads=[1, 1, 1, 1], kernel_shape=[3, 3])

    first = pair("x", "s", "z")
    inner = pair(convolution(first, "a"), "s1", "low")
    outer = pair(convolution(inner, "b"), "s2", "z2")
    total = pair(node("Add", [outer, first], "t"), "s2", "low")
    node("Identity", [total], "y")
    return onnx_model(nodes, constants, shape, shape)


def test_a_residual_block_is_two_kernels_of_bytes() -> None:
    model = residual_block([2, 8, 9, 11])
    x = np.random.default_rng(1).standard_normal((2, 8, 9, 11)).astype("float32") * 2
    mod = from_onnx(model, keep_params_in_input=False)
    found, recorder = run(mod, x)
    exact, optimized = (reference(model, x, optimized) for optimized in (False, True))
    step = 0.05
    assert np.abs(found - exact).max() <= 1.01 * step and (found == exact).mean() > 0.995
    assert np.abs(found - optimized).max() <= 2.01 * step
    assert len(recorder.computed) == 2
    # x is quantized, and what the second convolution writes is dequantized and transposed back.
    counted = count_kernels(mod, HERE, pipeline(HERE))
    assert counted.total <= 4, counted


def test_a_residual_block_of_unsigned_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a CPU with VNNI, with what this one has."""
    monkeypatch.setattr(products, "multiplies_unsigned", lambda _target: True)
    model = residual_block([1, 8, 9, 11])
    x = np.random.default_rng(4).standard_normal((1, 8, 9, 11)).astype("float32") * 2
    found, recorder = run(from_onnx(model, keep_params_in_input=False), x)
    exact = reference(model, x, False)
    assert np.abs(found - exact).max() <= 0.0505 and (found == exact).mean() > 0.995
    assert len(recorder.computed) == 2


@pytest.mark.parametrize("zero", ["constant", "computed", "none"])
def test_signed_bytes_that_others_made(monkeypatch: pytest.MonkeyPatch, zero: str) -> None:
    """Shifted in front of the product, where a CPU multiplies unsigned ones."""
    monkeypatch.setattr(products, "multiplies_unsigned", lambda _target: True)
    w = integers("int8", 16, 6)

    def body(emit: Any, x: Any, z: Any) -> list[Any]:
        point = {"constant": constant(7, "int8"), "computed": z, "none": constant(0, "int8")}[zero]
        left = emit(R.dequantize(x, constant(SCALE), point, out_dtype="float32"))
        right = emit(R.dequantize(constant(w), constant(SCALE), constant(0, "int8"), out_dtype="float32"))
        return [R.matmul(left, right)]

    x = integers("int8", 5, 16)
    found, _ = run(build(body, (x.shape, "int8"), ((), "int8")), x, np.asarray(7, "int8"))
    exact = (x.astype("int64") - (0 if zero == "none" else 7)) @ w.astype("int64") * np.float64(SCALE) ** 2
    np.testing.assert_allclose(found, exact, rtol=3e-7)


def test_instructions_of_bytes() -> None:
    mod = quantized_matmul(64, integers("int8", 64, 32), 3, SCALE, 0)
    executable = tvm.compile(mod, VNNI, relax_pipeline=pipeline(VNNI))
    (library,) = [m for m in executable.mod.imports if m.kind == "llvm"] or [executable.mod]
    assert "vpdpbusd" in library.inspect_source("asm")


def test_images_of_a_symbolic_number() -> None:
    model = residual_block(["n", 8, 6, 7])
    mod = from_onnx(model, keep_params_in_input=False)
    executable = tvm.compile(mod, HERE, relax_pipeline=pipeline(HERE))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    for images in (1, 3):
        x = np.random.default_rng(images).standard_normal((images, 8, 6, 7)).astype("float32")
        found, exact = vm["main"](tvm.runtime.tensor(x)).numpy(), reference(model, x, False)
        assert np.abs(found - exact).max() <= 0.0505 and (found == exact).mean() > 0.99


@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("rows", [5, "n"])
def test_integer_matrix_products_of_dynamic_scales(weights: str, rows: Any) -> None:
    # ONNX Runtime adds pairs of larger signed products in 16 bits where the CPU has no VNNI.
    w = integers("int8", 24, 10, low=-64, high=63) if weights == "int8" else integers("uint8", 24, 10)
    zero = np.zeros(10, "int8") if weights == "int8" else integers("uint8", 10, low=120, high=140)
    constants = {
        "w": w,
        "wz": zero,
        "ws": np.linspace(0.01, 0.02, 10, dtype="float32"),
        "b": np.ones(10, "float32"),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["scale"]),
        helper.make_node("Mul", ["real", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "b"], ["y"]),
    ]
    model = onnx_model(nodes, constants, [rows, 24], [rows, 10])
    x = np.random.default_rng(2).standard_normal((5, 24)).astype("float32")
    found, recorder = run(from_onnx(model, keep_params_in_input=False), x)
    np.testing.assert_allclose(found, reference(model, x, False), rtol=1e-5, atol=1e-5)
    assert [how for how in recorder.computed.values() if "an instruction" in how]


def test_products_that_are_int32_anyway_stay() -> None:
    """Differences of int32, which do not come from bytes."""

    def body(emit: Any, x: Any) -> list[Any]:
        return [
            R.matmul(
                emit(R.subtract(x, constant(3, "int32"))),
                constant(integers("int32", 4, 3)),
                out_dtype="int32",
            )
        ]

    mod = build(body, ((5, 4), "int32"))
    made, computed = after(mod)
    tvm.ir.assert_structural_equal(made, mod)
    assert not computed


def test_a_cuda_device_multiplies_floats() -> None:
    w = integers("int8", 12, 8)
    mod = quantized_matmul(12, w, -3, np.linspace(0.1, 0.2, 8), np.zeros(8), rows=5)
    x = integers("int8", 5, 12)
    recorder = Recorder()
    done = run_cuda(mod, [x], target=EMULATED, relax_pipeline=pipeline(EMULATED, None, recorder)).check()
    exact = (x.astype("int64") + 3) @ w.astype("int64") * np.float64(SCALE) * np.linspace(0.1, 0.2, 8)
    np.testing.assert_allclose(done.outputs[0], exact, rtol=1e-5, atol=1e-4)
    assert not any("multiplied as" in how for how in recorder.computed.values())
