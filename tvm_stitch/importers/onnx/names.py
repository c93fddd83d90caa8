# SPDX-License-Identifier: Apache-2.0
"""Import ONNX models with the names of their nodes, which TVM's importer drops."""

from __future__ import annotations

from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx, onnx_frontend

from ...relax.report.named_spans import named_call, with_named_calls
from .misread import check_read


def from_onnx_named(proto: onnx.ModelProto, shape_dict: dict[str, list[int]] | None = None) -> tvm.IRModule:
    """Run ``from_onnx(proto, shape_dict)``, and put every node's name into the span of its call, as the source.

    If a node becomes several calls, the last one has the name. A node without a name gets its first output's name.

    Args:
        proto: the model.
        shape_dict: shapes of inputs, to fix symbolic dimensions.

    Raises:
        ValueError: if the importer would misread the model.
        Exception: any error of the importer.
    """
    check_read(proto)
    importer = getattr(onnx_frontend, "ONNXGraphImporter", None)
    if importer is None or not hasattr(importer, "_convert_operator"):
        return from_onnx(proto, shape_dict=shape_dict)
    named = onnx.ModelProto()
    named.CopyFrom(proto)
    for node in named.graph.node:
        node.name = node.name or next((o for o in node.output if o), "")

    class Naming(importer):  # type: ignore[misc, valid-type]
        def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
            converted = super()._convert_operator(op_name, inputs, attrs, opset)
            return self._named(converted, str(attrs["tvm_custom"]["name"]))

        def _named(self, converted: Any, name: str) -> Any:
            if isinstance(converted, relax.Tuple):
                return relax.Tuple([self._named(field, name) for field in converted.fields])
            if isinstance(converted, relax.Var):
                emitted.setdefault(str(converted.name), name)
            if not isinstance(converted, relax.Call) or not name:
                return converted
            return self.bb.normalize(named_call(converted, name))

    emitted: dict[str, str] = {}
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    mod = Naming(shape_dict, "float32").from_onnx(named.graph, opset)
    return with_named_calls(mod, emitted)
