# SPDX-License-Identifier: Apache-2.0
"""Import ONNX models with the names of their nodes, which TVM's importer drops."""

from __future__ import annotations

import onnx
import tvm

from .load import from_onnx


def from_onnx_named(proto: onnx.ModelProto, shape_dict: dict[str, list[int]] | None = None) -> tvm.IRModule:
    """Run :func:`load.from_onnx`, and put every node's name into the span of its call, as the source.

    Args:
        proto: the model.
        shape_dict: shapes of inputs, to fix symbolic dimensions.

    Raises:
        UnsupportedModel: if no converter honours a part of the model.
    """
    return from_onnx(proto, shape_dict, names=True)
