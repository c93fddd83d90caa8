# SPDX-License-Identifier: Apache-2.0
"""Products of dequantized integers become products of integers, with the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.relax import op as R
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import ir as I
from tvm.script import relax as RS

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, symbol
from tvm_stitch.config import StitchConfig
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.quantize import products
from tvm_stitch.relax.quantize.products import QuantizedProducts
from tvm_stitch.target import this_cpu

HERE = tvm.target.Target(this_cpu())
AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
VNNI = tvm.target.Target({"kind": "llvm", "mcpu": "icelake-server"})
NONE = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
EMULATED = emulated_target()
SCALE = np.float32(0.05)


def integers(dtype: str, *shape: int, low: int | None = None, high: int | None = None) -> np.ndarray:
    limits = np.iinfo(dtype)
    low, high = limits.min if low is None else low, limits.max if high is None else high
    return np.random.default_rng(sum(shape)).integers(low, high + 1, shape).astype(dtype)


def after(mod: tvm.IRModule, target: Any = AVX2, **options: Any) -> tuple[tvm.IRModule, dict[str, str]]:
    made = QuantizedProducts(target, StitchConfig(**options))(mod)
    return without_decisions(made), dict(decisions_of(made).computed)


def operators(mod: tvm.IRModule) -> list[str]:
    values = relax.analysis.get_var2val(mod["main"]).values()
    return [
        v.op.name.removeprefix("relax.")
        for v in values
        if isinstance(v, relax.Call) and hasattr(v.op, "name")
    ]


def run(mod: tvm.IRModule, *arrays: np.ndarray, target: Any = HERE) -> tuple[np.ndarray, Recorder]:
    recorder = Recorder()
    executable = tvm.compile(mod, target, relax_pipeline=pipeline(target, None, recorder))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    return vm["main"](*map(tvm.runtime.tensor, arrays)).numpy(), recorder


def constant(value: Any, dtype: str | None = None) -> Any:
    return relax.const(np.asarray(value), dtype)


def quantized_matmul(
    k: int,
    weight: np.ndarray,
    zero: int,
    scale: Any,
    weight_zero: Any,
    dtype: str = "int8",
    rows: Any = 9,
    axis: int = 1,
) -> tvm.IRModule:
    """``dequantize(x) @ dequantize(weight)``, of an input of integers."""

    def body(emit: Any, x: Any) -> list[Any]:
        left = emit(R.dequantize(x, constant(SCALE), constant(zero, dtype), out_dtype="float32"))
        scales, zeros = (
            constant(np.asarray(scale, "float32")),
            constant(np.asarray(weight_zero, weight.dtype)),
        )
        right = emit(R.dequantize(constant(weight), scales, zeros, axis=axis, out_dtype="float32"))
        return [R.matmul(left, right)]

    return build(body, ((rows, k), dtype))


@I.ir_module
class Before:
    @RS.function
    def main(x: RS.Tensor((4, 3), "int8")) -> RS.Tensor((4, 2), "float32"):
        with RS.dataflow():
            real = RS.dequantize(x, RS.const(0.5, "float32"), RS.const(3, "int8"), out_dtype="float32")
            weight = RS.dequantize(
                RS.const([[1, -2], [3, 4], [5, 6]], "int8"),
                RS.const([0.25, 2.0], "float32"),
                RS.const([0, 0], "int8"),
                out_dtype="float32",
                axis=1,
            )
            result = RS.matmul(real, weight)
            RS.output(result)
        return result


@I.ir_module
class After:
    @RS.function
    def main(x: RS.Tensor((4, 3), "int8")) -> RS.Tensor((4, 2), "float32"):
        with RS.dataflow():
            sums = RS.matmul(x, RS.const([[1, -2], [3, 4], [5, 6]], "int8"), out_dtype="int32")
            centred = RS.subtract(sums, RS.const([27, 24], "int32"))
            real = RS.astype(centred, "float32")
            result = RS.multiply(real, RS.const([0.125, 1.0], "float32"))
            RS.output(result)
        return result


@I.ir_module
class Unsigned:
    @RS.function
    def main(x: RS.Tensor((4, 3), "int8")) -> RS.Tensor((4, 2), "float32"):
        with RS.dataflow():
            wide = RS.astype(x, "int16")
            moved = RS.add(wide, RS.const(128, "int16"))
            shifted = RS.astype(moved, "uint8")
            sums = RS.matmul(shifted, RS.const([[1, -2], [3, 4], [5, 6]], "int8"), out_dtype="int32")
            centred = RS.subtract(sums, RS.const([131 * 9, 131 * 8], "int32"))
            real = RS.astype(centred, "float32")
            result = RS.multiply(real, RS.const([0.125, 1.0], "float32"))
            RS.output(result)
        return result


@pytest.mark.parametrize(("target", "expected"), [(AVX2, After), (VNNI, Unsigned)], ids=["pairs", "vnni"])
def test_a_product_and_its_corrections(target: Any, expected: Any) -> None:
    made, computed = after(Before, target)
    tvm.ir.assert_structural_equal(made, expected)
    assert not computed


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("weights", ["signed", "unsigned", "asymmetric"])
@pytest.mark.parametrize("zero", [0, 7])
@pytest.mark.parametrize("per_column", [False, True])
def test_numbers(dtype: str, weights: str, zero: int, per_column: bool) -> None:
    k, n = 37, 21
    w = integers("int8" if weights == "signed" else "uint8", k, n)
    middle = {"signed": 0, "unsigned": 128, "asymmetric": 131}[weights]
    scale = np.linspace(0.01, 0.1, n, dtype="float32") if per_column else np.float32(0.02)
    weight_zero = np.full(n, middle) if per_column else middle
    mod = quantized_matmul(k, w, zero, scale, weight_zero, dtype)
    x = integers(dtype, 9, k)
    found, recorder = run(mod, x)
    exact = (x.astype("int64") - zero) @ (w.astype("int64") - middle)
    np.testing.assert_allclose(found, exact * np.float64(SCALE) * scale.astype("float64"), rtol=3e-7)
    assert any("an instruction" in how for how in recorder.computed.values())


def test_symbolic_rows() -> None:
    w = integers("int8", 12, 5)
    mod = quantized_matmul(12, w, -3, np.float32(0.5), 0, rows=symbol("n"))
    executable = tvm.compile(mod, HERE, relax_pipeline=pipeline(HERE))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    for rows in (0, 1, 13):
        x = integers("int8", rows, 12)
        exact = (x.astype("int64") + 3) @ w.astype("int64")
        found = vm["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(found, exact * np.float64(SCALE) * 0.5, rtol=3e-7)


def test_scales_that_are_computed() -> None:
    w = integers("int8", 16, 6)

    def body(emit: Any, x: Any, scale: Any) -> list[Any]:
        left = emit(R.dequantize(x, scale, constant(5, "uint8"), out_dtype="float32"))
        right = emit(
            R.dequantize(constant(w), constant(np.float32(0.5)), constant(0, "int8"), out_dtype="float32")
        )
        return [R.matmul(left, right)]

    mod = build(body, ((7, 16), "uint8"), ((), "float32"))
    x = integers("uint8", 7, 16)
    found, recorder = run(mod, x, np.asarray(0.3, "float32"))
    exact = (x.astype("int64") - 5) @ w.astype("int64")
    np.testing.assert_allclose(found, exact * np.float64(np.float32(0.3)) * 0.5, rtol=3e-7)
    assert any("an instruction" in how for how in recorder.computed.values())


def test_a_weight_stored_by_columns() -> None:
    w = integers("int8", 6, 16)

    def body(emit: Any, x: Any) -> list[Any]:
        left = emit(R.dequantize(x, constant(SCALE), constant(1, "int8"), out_dtype="float32"))
        scales = constant(np.linspace(0.1, 0.2, 6, dtype="float32"))
        right = R.dequantize(constant(w), scales, constant(np.zeros(6, "int8")), axis=0, out_dtype="float32")
        return [R.matmul(left, emit(R.permute_dims(emit(right))))]

    x = integers("int8", 3, 16)
    found, _ = run(build(body, (x.shape, "int8")), x)
    exact = (x.astype("int64") - 1) @ w.T.astype("int64")
    np.testing.assert_allclose(found, exact * np.float64(SCALE) * np.linspace(0.1, 0.2, 6), rtol=4e-7)


# -- refusals ------------------------------------------------------------------------------------------------------
def matmul_of(k: int, weight: np.ndarray, **more: Any) -> tvm.IRModule:
    return quantized_matmul(k, weight, 0, np.float32(0.5), more.pop("weight_zero", 0), **more)


@pytest.mark.parametrize(
    ("mod", "target", "reason"),
    [
        (matmul_of(4, integers("int8", 4, 3)), NONE, "the CPU multiplies no groups of integers"),
        (
            matmul_of(70_000, np.full((70_000, 1), 127, "int8")),
            AVX2,
            "70000 products may not fit into an int32",
        ),
        (
            quantized_matmul(3, integers("int8", 3, 2), 0, [0.1, 0.2, 0.3], [0, 0, 0], axis=0),
            AVX2,
            "scales along the reduction dimension",
        ),
        (matmul_of(4, integers("int8", 4, 3), dtype="int16"), AVX2, "templates take int8 and uint8"),
    ],
    ids=["cpu", "overflow", "axis", "type"],
)
def test_what_stays_as_it_is(mod: tvm.IRModule, target: Any, reason: str) -> None:
    made, computed = after(mod, target)
    tvm.ir.assert_structural_equal(made, mod)
    (why,) = computed.values()
    assert why.startswith("multiplied as float32: ") and reason in why


def test_the_bound_of_sums() -> None:
    for depth, taken in ((65_793, True), (65_794, False)):
        made, _ = after(matmul_of(depth, np.full((depth, 1), -128, "int8")))
        assert ("dequantize" not in operators(made)) is taken


def test_a_right_side_that_is_no_constant() -> None:
    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        parameters = constant(SCALE), constant(0, "int8")
        left, right = (emit(R.dequantize(v, *parameters, out_dtype="float32")) for v in (x, y))
        return [R.matmul(left, right)]

    mod = build(body, ((4, 5), "int8"), ((5, 6), "int8"))
    made, computed = after(mod)
    tvm.ir.assert_structural_equal(made, mod)
    assert list(computed.values()) == ["multiplied as float32: its right side is not a constant"]
    x, y = integers("int8", 4, 5), integers("int8", 5, 6)
    exact = x.astype("int64") @ y.astype("int64") * np.float64(SCALE) ** 2
    np.testing.assert_allclose(run(mod, x, y)[0], exact, rtol=1e-5, atol=1e-4)


def test_products_that_TVM_is_asked_for() -> None:
    _, computed = after(matmul_of(4, integers("int8", 4, 3)), compute="tvm")
    assert list(computed.values()) == ["multiplied as float32: TVM's schedules compute it"]


def test_products_of_floats_are_no_refusal() -> None:
    mod = build(lambda emit, x: [R.matmul(x, constant(np.ones((4, 3), "float32")))], ((5, 4), "float32"))
    made, computed = after(mod)
    tvm.ir.assert_structural_equal(made, mod)
    assert not computed


# -- convolutions --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("channels", "results", "groups", "stride", "padding", "zero"),
    [
        (3, 8, 1, 2, 1, 5),
        (8, 12, 2, 1, [0, 1, 2, 1], -3),
        (6, 6, 6, 1, 1, 9),
        (16, 10, 1, 1, 0, 4),
        (5, 4, 1, 1, 1, 0),
    ],
)
def test_convolutions(
    dtype: str, channels: int, results: int, groups: int, stride: int, padding: Any, zero: int
) -> None:
    zero = zero % 256 if dtype == "uint8" else zero
    w = integers("int8", results, channels // groups, 3, 3)
    scales = np.linspace(0.01, 0.03, results, dtype="float32")

    def body(emit: Any, x: Any) -> list[Any]:
        left = emit(R.dequantize(x, constant(SCALE), constant(zero, dtype), out_dtype="float32"))
        zeros = constant(np.zeros(results, "int8"))
        right = emit(R.dequantize(constant(w), constant(scales), zeros, axis=0, out_dtype="float32"))
        return [R.nn.conv2d(left, right, strides=stride, padding=padding, groups=groups)]

    mod = build(body, ((2, channels, 9, 8), dtype))
    x = integers(dtype, 2, channels, 9, 8)
    found, recorder = run(mod, x)
    top, left, bottom, right = [padding] * 4 if isinstance(padding, int) else padding
    wide = torch.nn.functional.pad(torch.tensor(x.astype("float64") - zero), (left, right, top, bottom))
    exact = torch.nn.functional.conv2d(
        wide, torch.tensor(w.astype("float64")), stride=stride, groups=groups
    ).numpy()
    expected = exact * np.float64(SCALE) * scales.astype("float64")[:, None, None]
    np.testing.assert_allclose(found, expected, rtol=3e-7)
    assert any(how.startswith("our template") for how in recorder.computed.values())


def test_a_convolution_whose_weight_has_a_zero_point() -> None:
    def mod(zero: int) -> tvm.IRModule:
        w = np.arange(256, dtype="uint8").reshape(1, 4, 8, 8)

        def body(emit: Any, x: Any) -> list[Any]:
            left = emit(R.dequantize(x, constant(SCALE), constant(1, "uint8"), out_dtype="float32"))
            right = R.dequantize(constant(w), constant(SCALE), constant(zero, "uint8"), out_dtype="float32")
            return [R.nn.conv2d(left, emit(right))]

        return build(body, ((1, 4, 9, 9), "uint8"))

    made, computed = after(mod(128))
    assert "dequantize" not in operators(made) and not computed
    made, computed = after(mod(100))
    assert "dequantize" in operators(made)
    assert "not signed bytes" in next(iter(computed.values()))


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
    """Two quantized convolutions, the second with a residual, as ``onnxruntime.quantization`` writes them."""
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
