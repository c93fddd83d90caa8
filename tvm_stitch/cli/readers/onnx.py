# SPDX-License-Identifier: Apache-2.0
"""Read ONNX models: check and import them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from ...front.files import import_onnx, read_onnx_file
from ...front.signature import Signature
from ...importers.onnx.compare import check_shapes, input_specs, onnxruntime_call, output_specs
from ...support.failures import error_text, fault_at, reraise_fatal
from ..errors import Failure, UsageError
from ..heavy import import_or_say
from .imported import RUNTIME_ADVICE, Model, PeerCall

if TYPE_CHECKING:
    from .imported import Inputs

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
        proto = read_onnx_file(path)
    except ValueError as error:
        raise UsageError(str(error)) from None
    _check_types(proto)
    try:
        check_shapes(proto, shapes)
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        model = import_onnx(proto, shapes, names=names)
    except Exception as error:
        reraise_fatal(error)
        if fault_at(error) is not None:  # a fault of this package, not of the model
            raise
        reason = error_text(error)
        advice = "" if _UNKNOWN in reason else _fix_shapes(proto, shapes)
        raise Failure(f"{path} cannot be imported: {reason}{advice}") from None
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


def _fix_shapes(proto: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]) -> str:
    """Return the options that fix the remaining symbolic sizes."""
    words = [
        spec.shape_option for spec in input_specs(proto) if spec.name not in shapes and not spec.is_static
    ]
    return f"; with fixed shapes it may: {' '.join(words)}, each N a number" if words else ""


def _peer(proto: onnx.ModelProto, inputs: Inputs) -> PeerCall:
    import_or_say("onnxruntime", RUNTIME_ADVICE)
    return PeerCall(onnxruntime_call(proto, inputs), list)
