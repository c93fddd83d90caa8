# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models, imported and compiled for llvm, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import helper, numpy_helper
from tvm import relax

import tvm_stitch
from tvm_stitch.importers.onnx.load import from_onnx

RNG = np.random.default_rng(0)
MICROSOFT = "com.microsoft"


def floats(*shape: int) -> np.ndarray:
    """Return random float32 of a normal distribution."""
    return RNG.standard_normal(shape).astype("float32")


def model(
    nodes: onnx.NodeProto | Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    constants: Mapping[str, Any] | None = None,
    opset: int = 21,
    dims: Mapping[str, Sequence[Any]] | None = None,
) -> onnx.ModelProto:
    """Return a model whose outputs are those of its last node. ``dims`` replaces shapes of inputs."""
    nodes = [nodes] if isinstance(nodes, onnx.NodeProto) else list(nodes)
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), (dims or {}).get(name, value.shape)
        )
        for name, value in inputs.items()
    ]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output if name]
    graph = helper.make_graph(nodes, "g", infos, outputs, weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def expected(proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return ONNX Runtime's results."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(value) for value in session.run(None, dict(inputs))]


def computed(proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the results of the imported model."""
    machine = relax.VirtualMachine(tvm_stitch.compile(from_onnx(proto), "llvm"), tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(value) for value in inputs.values()])
    return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [item.numpy() for item in result]


def compare(
    nodes: onnx.NodeProto | Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    constants: Mapping[str, Any] | None = None,
    opset: int = 21,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    dims: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Assert that an imported model computes what ONNX Runtime does, in the same types and shapes."""
    proto = model(nodes, inputs, constants, opset, dims)
    for got, want in zip(computed(proto, inputs), expected(proto, inputs), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol, atol)
