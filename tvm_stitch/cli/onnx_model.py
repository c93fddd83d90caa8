# SPDX-License-Identifier: Apache-2.0
"""ONNX models, checked and imported."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from ..execution.compare import load_onnx, onnxruntime_call, output_specs
from ..failures import error_text, let_pass
from ..onnx_check import InvalidModel, check_model
from .errors import Failure, UsageError
from .heavy import import_or_say
from .imported import ONNX_ADVICE, Model

if TYPE_CHECKING:
    from .imported import Call, Inputs


def read_onnx(path: Path, shapes: dict[str, tuple[int, ...]], names: bool) -> Model:
    """An ONNX model.

    Args:
        path: of the file.
        shapes: of inputs with symbolic dimensions.
        names: whether operators keep the names of the nodes.

    Raises:
        UsageError: when it is no valid one, or the shapes do not fit.
        Failure: when TVM has not all of its operators.
    """
    try:
        proto = onnx.load(str(path))
        check_model(proto, path.parent)
    except InvalidModel as error:
        raise UsageError(f"{path} is no valid ONNX model: {error}") from None
    except Exception as error:  # protobuf raises kinds of its own, and external data may be missing
        let_pass(error)
        raise UsageError(f"{path} is no valid ONNX model: {error_text(error)}") from None
    try:
        model = load_onnx(proto, shapes, names=names)
    except ValueError as error:
        if shapes:
            raise UsageError(str(error)) from None
        raise
    except Exception as error:
        if type(error).__name__ == "OpNotImplemented":  # TVM does not export the class
            unknown = error_text(error).rpartition(": ")[2]
            raise Failure(
                f"{path} has operators that TVM's ONNX importer does not know: {unknown}"
            ) from error
        raise
    return Model(model.mod, model.inputs, output_specs(model), "ONNX Runtime", partial(_peer, proto))


def _peer(proto: onnx.ModelProto, inputs: Inputs) -> Call:
    import_or_say("onnxruntime", ONNX_ADVICE)
    return onnxruntime_call(proto, inputs)
