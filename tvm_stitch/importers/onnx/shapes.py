# SPDX-License-Identifier: Apache-2.0
"""Convert the shapes of ONNX models into the form that TVM's importer supports for most models.

Exporters compute shapes by operators. The shape of a reshape, for example, is gathered from another tensor and
concatenated. The importer supports some of these. If all shapes are fixed, they are constants, and ONNX Runtime
computes them in advance.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence

import onnx

from ...support.failures import reraise_fatal
from .limits import within_limits


def with_symbolic_dims(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with symbolic dimensions in place of -1, which some exporters write (Paddle's).

    Dimensions of inputs get names, ``x_dim0`` for the first one of ``x``. Those of other values become unknown.
    """
    values = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    if not any(d.dim_value == -1 for v in values for d in _dims(v)):
        return proto
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    taken = {d.dim_param for v in values for d in _dims(v)}
    for value in model.graph.input:
        for axis, dim in enumerate(_dims(value)):
            if dim.dim_value == -1:
                name = f"{value.name}_dim{axis}"
                dim.dim_param = next(n for n in _candidates(name) if n not in taken)
                taken.add(dim.dim_param)
    for value in [*model.graph.output, *model.graph.value_info]:
        for dim in _dims(value):
            if dim.dim_value == -1:
                dim.ClearField("dim_value")
    return model


def folded(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto | None:
    """Return the model with everything folded that depends only on constants and on its shapes, by ONNX Runtime.

    Args:
        proto: the model.
        shapes: shapes of inputs with symbolic dimensions.

    Returns:
        The model, or None if inputs keep symbolic dimensions, or ONNX Runtime is missing or rejects the model.
    """
    try:
        import onnxruntime
    except ImportError:
        return None
    fixed = _fixed(proto, shapes)
    filled = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in fixed.graph.input if value.name not in filled]
    if not all(d.HasField("dim_value") for value in inputs for d in _dims(value)):
        return None
    options = onnxruntime.SessionOptions()
    basic = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # ONNX's operators only
    options.graph_optimization_level = basic
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = os.path.join(folder, "model.onnx")

        def fold() -> None:
            onnxruntime.InferenceSession(
                fixed.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )

        try:
            within_limits(fold, fixed)
            return onnx.load(options.optimized_model_filepath)
        except Exception as error:  # errors of ONNX Runtime, protobuf or the system: the model stays as it is
            reraise_fatal(error)
            return None


def _fixed(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.value_info[:]  # inferred again, with the sizes
    for value in model.graph.input:
        for dim, size in zip(_dims(value), shapes.get(value.name, ())):
            dim.dim_value = int(size)
    return model


def _dims(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    if not value.type.HasField("tensor_type"):
        return ()
    dims: Sequence[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return dims


def _candidates(name: str) -> Iterable[str]:
    yield name
    yield from (f"{name}_{number}" for number in itertools.count(2))
