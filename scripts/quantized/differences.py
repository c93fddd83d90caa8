# SPDX-License-Identifier: Apache-2.0
"""Find the first quantized tensor in which two runs differ, and compute its value in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .runs import Inputs, Run

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
TIE_ERRORS = 4.0
"""A value is a tie if it is so many errors of float32, as measured on its tensor, from the middle of two integers."""


@dataclass(frozen=True)
class First:
    """The first quantized tensor that differs from the reference, and one of its elements.

    Args:
        tensor: its name.
        count: elements that differ.
        exact: the element before rounding, in units of the scale without the zero point, in float64, in range.
        error: the largest error of float32 that the reference has on this tensor, in the same units.
        found: the element, without the zero point.
        reference: the reference's element, without the zero point.
    """

    tensor: str
    count: int
    exact: float
    error: float
    found: int
    reference: int

    @property
    def is_tie(self) -> bool:
        """Return whether float32 may round the exact value to either integer."""
        near = float(from_tie(np.asarray(self.exact))) <= TIE_ERRORS * self.error
        return near and abs(self.found - self.reference) == 1

    @property
    def reason(self) -> str:
        """Return the words that say if the element is a tie, and name the run that rounds it as float64 does."""
        right = int(np.rint(self.exact))
        named = {self.found: "the run is right", self.reference: "the reference is right"}
        return f"{'tie' if self.is_tie else 'no tie'}, {named.get(right, 'both are wrong')}"


@dataclass(frozen=True)
class Rounded:
    """The rounding of all quantized tensors of a run, each computed from the run's own tensors before it.

    Args:
        elements: elements of all tensors.
        otherwise: elements that float64 rounds to another integer.
        farthest: the greatest distance of such an element from the middle of two integers, in units of the scale.
    """

    elements: int
    otherwise: int
    farthest: float


def from_tie(exact: np.ndarray) -> np.ndarray:
    """Return the distances of values from the middle of two integers."""
    return np.abs(exact - np.floor(exact) - 0.5)


def rounded(model: onnx.ModelProto, inputs: Inputs, run: Run) -> Rounded:
    """Compare every quantized tensor of a run with float64, from the tensors that the run itself computed before."""
    tapped, names = with_quantized(model)
    values = dict(zip([value.name for value in tapped.graph.output], run(tapped, inputs)))
    known = {**inputs, **{name: values[name] for name in names}}
    elements, otherwise, farthest = 0, 0, 0.0
    for name in names:
        exact = _exact(model, name, known)
        zero, limits = _zero(model, name), np.iinfo(values[name].dtype)
        expected = np.clip(np.rint(exact) + zero, limits.min, limits.max)
        off = expected != values[name]
        elements += exact.size
        otherwise += int(off.sum())
        farthest = max(farthest, float(np.max(from_tie(exact[off]), initial=0.0)))
    return Rounded(elements, otherwise, farthest)


def with_quantized(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Return a model that also returns its quantized tensors, and their names in the order of computation.

    A tensor that the model computes from constants alone is not returned.
    """
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    types = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    constant = {tensor.name for tensor in model.graph.initializer}
    names = []
    for node in model.graph.node:
        if all(name in constant for name in node.input if name):
            constant.update(node.output)
        elif node.op_type == QUANTIZE:
            names.append(node.output[0])
    outputs = {value.name for value in model.graph.output}
    tapped.graph.output.extend(types[name] for name in names if name in types and name not in outputs)
    kept = {value.name for value in tapped.graph.output}
    return tapped, [name for name in names if name in kept]


def first_difference(model: onnx.ModelProto, inputs: Inputs, run: Run, reference: Run) -> First | None:
    """Return the first quantized tensor in which a run differs from the reference, or None.

    The other quantized tensors are outputs of the model here, which may change how it is optimized.
    """
    tapped, names = with_quantized(model)
    order = [value.name for value in tapped.graph.output]
    expected, values = (dict(zip(order, each(tapped, inputs))) for each in (reference, run))
    for name in names:
        if np.array_equal(expected[name], values[name]):
            continue
        differs = np.flatnonzero(expected[name].reshape(-1) != values[name].reshape(-1))
        exact, error = exact_value(model, name, {**inputs, **expected}, reference)
        zero, limits = _zero(model, name), np.iinfo(values[name].dtype)
        position = differs[
            np.argmax(np.abs((values[name] - expected[name].astype("int64")).reshape(-1)[differs]))
        ]
        return First(
            name,
            len(differs),
            float(np.clip(exact.reshape(-1)[position], limits.min - zero, limits.max - zero)),
            error,
            int(values[name].reshape(-1)[position]) - zero,
            int(expected[name].reshape(-1)[position]) - zero,
        )
    return None


def exact_value(
    model: onnx.ModelProto, name: str, known: dict[str, np.ndarray], reference: Run
) -> tuple[np.ndarray, float]:
    """Return a quantized tensor before rounding in float64, and the largest error of the reference's float32.

    Args:
        model: a model.
        name: the tensor.
        known: the model's inputs, and the quantized tensors before this one.
        reference: runs the part of the model in float32.
    """
    scale = _scale(model, name)
    exact = _exact(model, name, known)
    part, given = _part(model, _producer(model)[name].input[0], known)
    narrow = reference(part, given)[0].astype("float64") / scale
    return exact, float(np.max(np.abs(narrow - exact), initial=0.0))


def _exact(model: onnx.ModelProto, name: str, known: dict[str, np.ndarray]) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator

    part, given = _part(model, _producer(model)[name].input[0], known)
    values = {k: v.astype("float64") if v.dtype == np.float32 else v for k, v in given.items()}
    if not part.graph.node:
        return np.asarray(values[part.graph.output[0].name]) / _scale(model, name)
    return np.asarray(ReferenceEvaluator(in_float64(part)).run(None, values)[0]) / _scale(model, name)


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of float32 in float64. Dequantized tensors are computed from the same integers and scales."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    graph, nodes = wide.graph, []
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float64"), tensor.name)
            )
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(
                    numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype("float64"))
                )
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
        nodes.extend(_dequantized(node, wide) if node.op_type == DEQUANTIZE else [node])
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return wide


def _dequantized(node: onnx.NodeProto, model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return nodes that compute ``(x - zero) * scale`` in float64, for which DequantizeLinear has no form."""
    x, scale, zero = node.input
    constants = _constants(model)
    rank = constants[x].ndim if x in constants else 0
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    parts, nodes = {}, []
    for name in (scale, zero):
        parts[name] = name
        if constants[name].size > 1:
            shape = [1] * rank
            shape[axis] = -1
            parts[name] = f"{node.output[0]}/{name}"
            nodes.append(helper.make_node("Constant", [], [f"{parts[name]}/shape"], value_ints=shape))
            nodes.append(helper.make_node("Reshape", [name, f"{parts[name]}/shape"], [parts[name]]))
    casts = {}
    for name in (x, parts[zero]):
        casts[name] = f"{node.output[0]}/{name}/wide"
        nodes.append(helper.make_node("Cast", [name], [casts[name]], to=TensorProto.DOUBLE))
    difference = f"{node.output[0]}/difference"
    nodes.append(helper.make_node("Sub", [casts[x], casts[parts[zero]]], [difference]))
    return [*nodes, helper.make_node("Mul", [difference, parts[scale]], [node.output[0]])]


def _part(
    model: onnx.ModelProto, output: str, known: dict[str, np.ndarray]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the part of a model between known tensors and an output, and the known tensors that it reads."""
    producers, constants = _producer(model), _constants(model)
    needed: list[str] = [output]
    nodes: set[str] = set()
    inputs: dict[str, np.ndarray] = {}
    while needed:
        name = needed.pop()
        if name in known:
            inputs[name] = known[name]
        elif name and name not in constants and producers[name].output[0] not in nodes:
            nodes.add(producers[name].output[0])
            needed.extend(producers[name].input)
    kept = [node for node in model.graph.node if node.output[0] in nodes]
    read = {name for node in kept for name in node.input}
    graph = helper.make_graph(
        kept,
        "part",
        [_value(name, value) for name, value in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [tensor for tensor in model.graph.initializer if tensor.name in read],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version), inputs


def _value(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _producer(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in model.graph.node for name in node.output}


def _constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _scale(model: onnx.ModelProto, name: str) -> float:
    return float(_constants(model)[_producer(model)[name].input[1]].reshape(-1)[0])


def _zero(model: onnx.ModelProto, name: str) -> int:
    return int(_constants(model)[_producer(model)[name].input[2]].reshape(-1)[0])
