# SPDX-License-Identifier: Apache-2.0
"""Check the properties of an ONNX model that TVM's importer takes for granted.

``onnx.checker`` proves less than the importer assumes. For example, a required input may have an empty name (ONNX's
notation for an omitted optional input), which ends the importer's process. The missing checks are here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, defs

from ...support.child_process import ChildFailed
from ...support.failures import error_text, reraise_fatal
from .limits import quick_reason, too_large_constant, within_limits

MOST_ELEMENTS = 1 << 40
"""Elements of a tensor that no machine holds, so that a dimension must be wrong."""


class InvalidModel(ValueError):
    """The model is no valid ONNX. The message says what is wrong, and where."""


def check_model(proto: onnx.ModelProto) -> None:
    """Check a model for all properties that an importer takes for granted, in a child process with limits.

    Args:
        proto: the model.

    Raises:
        InvalidModel: with the fault, and its node or tensor. Also if the check takes too much time or memory.
    """
    try:
        fault = within_limits(lambda: _fault(proto), proto)
    except ChildFailed as err:
        reason = quick_reason(proto) or f"ONNX's own check does not end well: {error_text(err)}"
        raise InvalidModel(reason) from None
    if fault is not None:
        raise InvalidModel(fault)


def _fault(proto: onnx.ModelProto) -> str | None:
    try:
        _check(proto)
    except InvalidModel as err:
        return str(err)
    return None


def _check(proto: onnx.ModelProto) -> None:
    odd = False
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError, TypeError, RuntimeError) as err:
        odd = _is_loaded(
            proto
        )  # the checker knows no operators of other owners, and wants types of all values
        if not odd:
            raise InvalidModel(error_text(err)) from None
    names = [value.name for value in proto.graph.output]
    for name in names:
        if names.count(name) > 1:
            raise InvalidModel(f"two outputs have the name {name!r}")
    versions = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in proto.opset_import}
    newest = defs.onnx_opset_version()
    if versions.get("", 0) > newest:
        raise InvalidModel(
            f"it is of opset {versions['']}, and the installed onnx package knows {newest}: pip install -U onnx"
        )
    _Checker(versions, {f.name for f in proto.functions}).graph(proto.graph, frozenset())
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as err:
        if not odd:
            raise InvalidModel(f"shapes or types do not agree: {error_text(err)}") from None
        inferred = proto
    except (ValueError, RuntimeError, TypeError) as err:
        raise InvalidModel(error_text(err)) from None
    for value in [*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output]:
        _check_value(value)
    if (fault := too_large_constant(inferred)) is not None:
        raise InvalidModel(fault)


def _is_loaded(proto: onnx.ModelProto) -> bool:
    """Return whether ONNX Runtime loads a model, which settles what the onnx package finds odd. It may be missing."""
    try:
        import onnxruntime
    except ImportError:
        return False
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # computes nothing
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's kinds of errors, which derive from RuntimeError and others
        reraise_fatal(error)
        return False
    return True


class _Checker:
    """Walks a graph and the graphs in its nodes' attributes."""

    def __init__(self, versions: dict[str, int], functions: set[str]):
        self.versions, self.functions = versions, functions

    def graph(self, graph: onnx.GraphProto, outside: frozenset[str]) -> None:
        """Check a graph. ``outside`` are the names that enclosing graphs define."""
        known = set(outside)
        for tensor in graph.initializer:
            _check_tensor(tensor, f"initializer {tensor.name!r}")
            known.add(tensor.name)
        for sparse in graph.sparse_initializer:
            known.add(sparse.values.name)
        for value in graph.input:
            if not value.name:
                raise InvalidModel("an input has no name")
            _check_value(value)
            known.add(value.name)
        for number, node in enumerate(graph.node):
            self.node(node, f"node {number} ({node.op_type} {node.name!r})", known)
        if not graph.output:
            raise InvalidModel("the graph has no output")
        for value in graph.output:
            if not value.name or value.name not in known:
                raise InvalidModel(f"nothing makes the output {value.name!r}")

    def node(self, node: onnx.NodeProto, where: str, known: set[str]) -> None:
        """Check a node, and add its outputs to the known names."""
        for name in node.input:
            if name and name not in known:
                raise InvalidModel(f"{where} reads {name!r}, which nothing before it makes")
        schema = self.schema(node)
        if schema is not None:
            _check_names(node.input, schema.inputs, "input", where)
            _check_names(node.output, schema.outputs, "output", where)
        elif not all(node.input):
            raise InvalidModel(f"{where} has an input with no name")
        if not any(node.output):
            raise InvalidModel(f"{where} has no output")
        for attribute in node.attribute:
            for tensor in [attribute.t, *attribute.tensors] if attribute.HasField("t") else attribute.tensors:
                _check_tensor(tensor, f"attribute {attribute.name!r} of {where}")
            _check_numbers(attribute, where)
            for graph in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
                self.graph(graph, frozenset(known))
        known |= set(node.output) - {""}

    def schema(self, node: onnx.NodeProto) -> Any:
        """Return the schema of a node's operator, or None if ONNX has none."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        if node.op_type in self.functions or domain not in self.versions:
            return None
        try:
            return defs.get_schema(node.op_type, self.versions[domain], domain)
        except defs.SchemaError:
            return None


def _check_names(names: Sequence[str], formal: Sequence[Any], what: str, where: str) -> None:
    """Check that every parameter that is not optional in the schema has a name."""
    optional = defs.OpSchema.FormalParameterOption
    for position, name in enumerate(names):
        if name:
            continue
        parameter = formal[min(position, len(formal) - 1)] if formal else None
        if parameter is None or parameter.option != optional.Optional:
            name_of_parameter = f" ({parameter.name})" if parameter is not None else ""
            raise InvalidModel(
                f"{what} {position}{name_of_parameter} of {where} has no name, and is not optional"
            )
    for position, parameter in enumerate(formal):
        if parameter.option == optional.Single and position >= len(names):
            raise InvalidModel(f"{where} lacks {what} {position} ({parameter.name})")


def _check_numbers(attribute: onnx.AttributeProto, where: str) -> None:
    """Check that attributes are not NaN. TVM converts some to integers, and no ONNX operator gives NaN a meaning."""
    if any(math.isnan(f) for f in [attribute.f, *attribute.floats]):
        raise InvalidModel(f"attribute {attribute.name!r} of {where} is not a number")


def _check_value(value: onnx.ValueInfoProto) -> None:
    """Check that the dimensions of a value are sizes."""
    if not value.type.HasField("tensor_type"):
        return
    dims = [d.dim_value for d in value.type.tensor_type.shape.dim if d.HasField("dim_value")]
    _check_dims(dims, f"{value.name!r}")


def _check_dims(dims: Sequence[int], where: str) -> None:
    if any(d < 0 for d in dims):
        raise InvalidModel(f"{where} has a negative dimension: {list(dims)}")
    if math.prod(dims) > MOST_ELEMENTS or any(d > MOST_ELEMENTS for d in dims):
        raise InvalidModel(f"{where} has {math.prod(dims)} elements: {list(dims)}")


def _check_tensor(tensor: TensorProto, where: str) -> None:
    """Check that a constant has as much data as its shape says. External data are not read."""
    _check_dims(tensor.dims, where)
    if tensor.data_type == TensorProto.UNDEFINED:
        raise InvalidModel(f"{where} has no type")
    if tensor.data_location == TensorProto.EXTERNAL:
        return
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except Exception as err:  # NumPy's and protobuf's kinds of errors, which all mean unreadable data
        raise InvalidModel(f"{where} cannot be read: {error_text(err)}") from None
    if array.size != math.prod(tensor.dims):
        raise InvalidModel(f"{where} has {array.size} elements, its shape says {math.prod(tensor.dims)}")
