# SPDX-License-Identifier: Apache-2.0
"""Functions that importers make of operators are those operators again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper as H
from tvm import relax, te, topi
from tvm.relax.frontend.onnx import from_onnx

from tests.graph.helpers import symbol
from tests.repairs import faults
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.legalize.raised_calls import RaisedCalls


def called(function: Callable[..., Any], *shapes: tuple[Any, ...], operator: bool = False) -> tvm.IRModule:
    """Build a module of one call: of a function made of tensor expressions, or of an operator."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            made = builder.emit(function(*params)) if operator else builder.emit_te(function, *params)
            result = builder.emit_output(made)
        builder.emit_func_output(result)
    return builder.get()


N = symbol("n")


@pytest.mark.parametrize(
    ("function", "operator"), [(topi.maximum, relax.op.maximum), (topi.minimum, relax.op.minimum)]
)
@pytest.mark.parametrize(
    "shapes", [((2, 3), ()), ((2, 3), (2, 3)), ((2, 1), (3,)), ((N, 3), (N, 1))], ids=str
)
def test_what_is_an_operator(function: Any, operator: Any, shapes: Any) -> None:
    after = RaisedCalls()(called(function, *shapes))
    tvm.ir.assert_structural_equal(after["main"], called(operator, *shapes, operator=True)["main"], True)


def maximum(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """Add under the name of another operator."""
    return te.compute(x.shape, lambda *i: x[i] + y[i], "maximum")


def test_a_function_of_that_name_that_computes_something_else() -> None:
    mod = called(maximum, (2, 3), (2, 3))
    assert any(g.name_hint == "maximum" for g in mod.get_global_vars())
    tvm.ir.assert_structural_equal(RaisedCalls()(mod), mod)


def test_operands_of_two_types() -> None:
    """Tensor expressions convert one of them, and operators take none such."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType((2, 3), dtype)) for i, dtype in enumerate(("float32", "int32"))
    ]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit_te(topi.maximum, *params))
    mod = builder.get()
    tvm.ir.assert_structural_equal(RaisedCalls()(mod), mod)


def test_hard_swish_of_an_onnx_file_joins_its_convolution() -> None:
    """TVM's importer still makes functions of a clip, and none is left between convolutions."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal(shape).astype("float32")
        for name, shape in (("w", (8, 4, 3, 3)), ("v", (5, 8, 1, 1)))
    }
    constants = {name: np.array(value, "float32") for name, value in (("low", 0), ("high", 6), ("three", 3))}
    nodes = [
        H.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        H.make_node("Add", ["a", "three"], ["b"]),
        H.make_node("Clip", ["b", "low", "high"], ["c"]),
        H.make_node("Mul", ["a", "c"], ["d"]),
        H.make_node("Div", ["d", "high"], ["e"]),
        H.make_node("Conv", ["e", "v"], ["y"]),
    ]
    kinds = [
        H.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in (("x", [1, 4, 9, 9]), ("y", None))
    ]
    initial = [onnx.numpy_helper.from_array(a, n) for n, a in (weights | constants).items()]
    model = H.make_model(
        H.make_graph(nodes, "hard-swish", kinds[:1], kinds[1:], initial),
        opset_imports=[H.make_opsetid("", 17)],
        ir_version=8,
    )
    mod = from_onnx(model)
    assert any(g.name_hint == "maximum" for g in mod.get_global_vars()), "nothing is left to be raised"
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    executable = tvm.compile(mod, target, relax_pipeline=pipeline(target))
    counted = count_kernels(mod, target, pipeline(target))
    assert (counted.total, counted.compute_intensive) == (2, 2), counted
    x = rng.standard_normal((1, 4, 9, 9)).astype("float32")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    import torch

    a = torch.conv2d(torch.tensor(x).double(), torch.tensor(weights["w"]).double(), padding=1)
    wanted = torch.conv2d(torch.nn.functional.hardswish(a), torch.tensor(weights["v"]).double()).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def calls_of_relu6(*passes: Any) -> list[str]:
    """Return the names of the functions that an imported clip calls."""
    values = [onnx.numpy_helper.from_array(np.array(v, "float32"), n) for n, v in (("low", 0), ("high", 6))]
    kinds = [H.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in "xy"]
    nodes = [H.make_node("Clip", ["x", "low", "high"], ["y"])]
    graph = H.make_graph(nodes, "relu6", kinds[:1], kinds[1:], values)
    model = H.make_model(graph, opset_imports=[H.make_opsetid("", 17)], ir_version=8)
    mod = tvm.transform.Sequential(list(passes))(from_onnx(model))
    bound = relax.analysis.get_var2val(mod["main"]).values()
    return [str(value.op.name) for value in bound if isinstance(value, relax.Call)]


def test_fault() -> None:
    faults.needed("relax.call_tir" in calls_of_relu6(), "legalize/raised_calls.py")


def test_repair() -> None:
    assert "relax.call_tir" not in calls_of_relu6(RaisedCalls())
    with faults.without("RaisedCalls"):
        assert "relax.call_tir" in calls_of_relu6(RaisedCalls())
