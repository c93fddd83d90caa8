# SPDX-License-Identifier: Apache-2.0
"""Load ONNX models, and compare the results of compiled models with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import tvm
from onnx import helper

from ...execution.tensors import TensorSpec, specs_of_outputs
from ...graph.dtype import HALF


@dataclass(frozen=True)
class OnnxModel:
    """An imported ONNX model: the Relax module (parameters bound as constants), and its inputs."""

    proto: onnx.ModelProto
    mod: tvm.IRModule
    inputs: tuple[TensorSpec, ...]


def load_onnx(
    proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None, names: bool = False
) -> OnnxModel:
    """Import an ONNX model into Relax.

    Args:
        proto: the model.
        shapes: shapes that replace those of the named inputs, to fix symbolic dimensions.
        names: whether calls keep the names of their ONNX nodes, in their spans.

    Raises:
        ValueError: if ``shapes`` names no input of the model, or contradicts a fixed dimension.
        UnsupportedModel: if a node has something that no converter honours.
    """
    from .load import from_onnx  # not for a TVM with Relay

    fixed = {name: tuple(int(d) for d in shape) for name, shape in (shapes or {}).items()}
    check_shapes(proto, fixed)
    inputs = tuple(TensorSpec(s.name, fixed.get(s.name, s.shape), s.dtype) for s in input_specs(proto))
    return OnnxModel(proto, from_onnx(proto, fixed, names), inputs)


def check_shapes(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise a ValueError if shapes name no input of the model, or contradict a fixed dimension."""
    inputs = input_specs(proto)
    known = {spec.name: spec for spec in inputs}
    for name, shape in shapes.items():
        if name not in known:
            raise ValueError(f"the model has no input '{name}'; its inputs are {'; '.join(map(str, inputs))}")
        if not known[name].takes(shape):
            raise ValueError(f"shape {list(shape)} does not fit the input {known[name]}")


def input_specs(proto: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the inputs of a model that no initializer fills, in order."""
    filled = {tensor.name for tensor in proto.graph.initializer}
    specs = []
    for value in proto.graph.input:
        if value.name in filled:
            continue
        tensor = value.type.tensor_type
        shape = tuple(
            int(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim
        )
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
        specs.append(TensorSpec(value.name, shape, dtype))
    return tuple(specs)


def output_specs(model: OnnxModel) -> tuple[TensorSpec, ...]:
    """Return the outputs of an imported model, in order, with the shapes that Relax infers for them."""
    return specs_of_outputs(model.mod, [value.name for value in model.proto.graph.output])


def onnxruntime_call(
    proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray]
) -> Callable[[], list[np.ndarray]]:
    """Return a call of ONNX Runtime on the CPU, with its default threads. The call returns all outputs in order.

    Inputs of a half type are converted if the model takes another type.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = {spec.name: spec.dtype for spec in input_specs(proto)}
    given = {n: v.astype(wanted[n]) if str(v.dtype) in HALF else v for n, v in inputs.items()}
    return lambda: [np.asarray(output) for output in session.run(None, given)]


def greatest_error(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Return the greatest absolute difference over all outputs. It is infinite if shapes, NaN or inf do not match."""
    if len(outputs) != len(expected):
        return float("inf")
    worst = 0.0
    for got, want in zip(outputs, expected, strict=True):
        if got.shape != want.shape:
            return float("inf")
        a, b = got.astype(np.float64), want.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            difference = np.where(same, 0.0, np.abs(a - b))
        if difference.size:
            peak = float(difference.max())
            worst = max(worst, float("inf") if np.isnan(peak) else peak)
    return worst
