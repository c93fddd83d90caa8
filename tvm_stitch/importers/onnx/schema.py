# SPDX-License-Identifier: Apache-2.0
"""Attributes of ONNX nodes with the defaults of ONNX's schemas, as Python values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx
from onnx import defs, numpy_helper


def domain_of(node: onnx.NodeProto) -> str:
    """Return a node's domain, ``""`` for ONNX's own."""
    return "" if node.domain == "ai.onnx" else str(node.domain)


def versions_of(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the version of each operator set of a model, by domain."""
    return {("" if o.domain == "ai.onnx" else str(o.domain)): int(o.version) for o in proto.opset_import} or {
        "": 1
    }


@cache
def schema_of(domain: str, op: str, version: int) -> Any:
    """Return the schema of an operator, or None if the onnx package has none."""
    try:
        return defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None


def attributes_of(node: onnx.NodeProto, version: int, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's attributes, with the schema's defaults, or ``defaults`` where there is no schema.

    Attributes without default that the node lacks are absent. Strings are ``str``, tensors NumPy arrays, and graphs
    and types protobuf messages.
    """
    schema = schema_of(domain_of(node), node.op_type, version)
    values = dict(defaults)
    if schema is not None:
        for name, attribute in schema.attributes.items():
            if attribute.default_value.name:
                values[name] = value_of(attribute.default_value)
    return values | {attribute.name: value_of(attribute) for attribute in node.attribute}


def value_of(attribute: onnx.AttributeProto) -> Any:
    """Return the value of an attribute as Python values."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [each.decode("utf-8", "replace") for each in value]
    if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(value)
    return value
