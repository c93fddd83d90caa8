# SPDX-License-Identifier: Apache-2.0
"""ONNX models, checked and imported."""

from __future__ import annotations

import contextlib
import io
import re
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from ..execution.compare import (
    OnnxModel,
    check_shapes,
    input_specs,
    load_onnx,
    onnxruntime_call,
    output_specs,
)
from ..failures import error_text, fault_at, let_pass
from ..onnx_check import InvalidModel, check_model
from ..onnx_shapes import folded, with_symbolic_dims
from .errors import Failure, UsageError
from .heavy import import_or_say
from .imported import ONNX_ADVICE, Model
from .quiet import without_native_stderr

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
        Failure: when TVM's importer does not take it.
    """
    try:
        proto = with_symbolic_dims(onnx.load(str(path)))
        check_model(proto, path.parent)
    except InvalidModel as error:
        raise UsageError(f"{path} is no valid ONNX model: {error}") from None
    except Exception as error:  # protobuf raises kinds of its own, and external data may be missing
        let_pass(error)
        raise UsageError(f"{path} is no valid ONNX model: {error_text(error)}") from None
    try:
        check_shapes(proto, shapes)
    except ValueError as error:
        raise UsageError(str(error)) from None
    model = _imported(proto, shapes, names)
    if isinstance(model, str) and (constant := folded(proto, shapes)) is not None:
        model = _imported(constant, shapes, names)
    if isinstance(model, str):
        open_dims = [str(s) for s in input_specs(proto) if s.name not in shapes and not s.is_static]
        advice = (
            f"; with fixed shapes it may: --shape INPUT=1,128 for {'; '.join(open_dims)}" if open_dims else ""
        )
        raise Failure(f"TVM's ONNX importer does not take {path}: {model}{advice}")
    return Model(model.mod, model.inputs, output_specs(model), "ONNX Runtime", partial(_peer, proto))


def _imported(proto: onnx.ModelProto, shapes: dict[str, tuple[int, ...]], names: bool) -> OnnxModel | str:
    """The model as TVM imports it, or why it does not, in a line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            return load_onnx(proto, shapes, names=names)
    except Exception as error:
        let_pass(error)
        if fault_at(error) is not None:  # ours, and not the importer's
            raise
        reason = error_text(error)
        if type(error).__name__ == "OpNotImplemented":  # TVM does not export the class
            return f"it does not know the operators {reason.rpartition(': ')[2]}"
        operator = re.search(r"^Error converting operator (\w+)", said.getvalue(), re.M)
        # What it was building lives in the error's frames, and TVM warns when that goes away unfinished.
        with without_native_stderr():
            traceback.clear_frames(error.__traceback__)
            error.__traceback__ = None
            del error
        return f"{operator[1]}: {reason}" if operator else reason


def _peer(proto: onnx.ModelProto, inputs: Inputs) -> Call:
    import_or_say("onnxruntime", ONNX_ADVICE)
    return onnxruntime_call(proto, inputs)
