# SPDX-License-Identifier: Apache-2.0
"""Read ONNX models: check and import them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from ...front.signature import Signature
from ...importers.onnx.check import InvalidModel, check_model
from ...importers.onnx.compare import (
    OnnxModel,
    check_shapes,
    input_specs,
    load_onnx,
    onnxruntime_call,
    output_specs,
)
from ...importers.onnx.shapes import folded, with_symbolic_dims
from ...support.failures import error_text, fault_at, reraise_fatal
from ..errors import Failure, UsageError
from ..heavy import import_or_say
from .imported import RUNTIME_ADVICE, Model

if TYPE_CHECKING:
    from .imported import Call, Inputs

_UNKNOWN = "no converter knows this operator"


def read_onnx(path: Path, shapes: dict[str, tuple[int, ...]], names: bool) -> Model:
    """Return an ONNX model.

    Args:
        path: path of the file.
        shapes: shapes of inputs with symbolic dimensions.
        names: whether operators keep the names of the nodes.

    Raises:
        UsageError: if the model is invalid, or the shapes do not fit.
        Failure: if no converter takes one of its nodes.
    """
    try:
        proto = with_symbolic_dims(onnx.load(str(path)))
        check_model(proto)
    except InvalidModel as error:
        raise UsageError(f"{path} is not a valid ONNX model: {error}") from None
    except Exception as error:  # protobuf raises its own kinds, and external data may be missing
        reraise_fatal(error)
        raise UsageError(f"{path} is not a valid ONNX model: {error_text(error)}") from None
    _check_types(proto)
    try:
        check_shapes(proto, shapes)
    except ValueError as error:
        raise UsageError(str(error)) from None
    model = _imported(proto, shapes, names)
    if isinstance(model, str) and (constant := folded(proto, shapes)) is not None:
        second = _imported(constant, shapes, names)  # sizes that are computed are numbers now
        model = model if isinstance(second, str) else second
    if isinstance(model, str):
        advice = "" if _UNKNOWN in model else _fix_shapes(proto, shapes)
        raise Failure(f"{path} cannot be imported: {model}{advice}")
    return Model(
        model.mod, Signature(model.inputs, output_specs(model)), "ONNX Runtime", partial(_peer, proto)
    )


def _check_types(proto: onnx.ModelProto) -> None:
    """Raise a UsageError for inputs and outputs that are not tensors of numbers."""
    filled = {tensor.name for tensor in proto.graph.initializer}
    for what, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for value in values:
            if value.name in filled:
                continue
            kind = (
                value.type.WhichOneof("value") or "tensor_type"
            )  # of an output without a type it is inferred
            if kind != "tensor_type":
                actual = f"a {kind.removesuffix('_type').replace('_', ' ')}"
            elif value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
                actual = "a tensor of strings"
            else:
                continue
            raise UsageError(
                f"the {what} '{value.name}' is {actual}; TVM takes tensors of numbers: export the model without it"
            )


def _imported(proto: onnx.ModelProto, shapes: dict[str, tuple[int, ...]], names: bool) -> OnnxModel | str:
    """Return the imported model, or the reason against it in one line."""
    try:
        return load_onnx(proto, shapes, names=names)
    except Exception as error:
        reraise_fatal(error)
        if fault_at(error) is not None:  # a fault of this package, not of the model
            raise
        return error_text(error)


def _fix_shapes(proto: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]) -> str:
    """Return the options that fix the remaining symbolic sizes."""
    words = [
        spec.shape_option for spec in input_specs(proto) if spec.name not in shapes and not spec.is_static
    ]
    return f"; with fixed shapes it may: {' '.join(words)}, each N a number" if words else ""


def _peer(proto: onnx.ModelProto, inputs: Inputs) -> Call:
    import_or_say("onnxruntime", RUNTIME_ADVICE)
    return onnxruntime_call(proto, inputs)
