# SPDX-License-Identifier: Apache-2.0
"""Refuse models with an operator or an attribute's value that no converter is known to honour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from ....graph.extent import as_plain_text
from ..converters import CONVERSIONS
from ..converters.node import ANY, Conversion
from ..schema import attributes_of, domain_of, schema_of
from .stock import STOCK

_DOMAINS = {"com.microsoft": "ONNX Runtime's", "ai.onnx.ml": "ONNX's for classical machine learning"}
_SHOWN = 60


class UnsupportedModel(ValueError):
    """A model has an operator, or an attribute of one, that no converter takes. The message names node and reason."""

    def __init__(self, reason: str):
        """Make the error of a reason. Extents in it are printed as numbers and symbols."""
        super().__init__(as_plain_text(reason))


def is_honoured(domain: str, op: str) -> bool:
    """Return whether a converter, of this package or of TVM, is known to take an operator."""
    return (domain, op) in CONVERSIONS or (domain == "" and op in STOCK)


def check_graph(
    graph: onnx.GraphProto,
    versions: Mapping[str, int],
    conversions: Mapping[tuple[str, str], Conversion] = CONVERSIONS,
) -> None:
    """Check all nodes of a graph and of the graphs in its nodes' attributes.

    Args:
        graph: the graph, without nodes of functions.
        versions: the version of each operator set, by domain.
        conversions: the converters that are tried before TVM's.

    Raises:
        UnsupportedModel: for the first node that has anything outside of the tables.
    """
    for number, node in enumerate(graph.node):
        version = versions.get(domain_of(node), 1)
        if reason := _refused(node, version, conversions):
            raise UnsupportedModel(f"{where(number, node, version)}: {reason}")
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
                check_graph(inner, versions, conversions)


def where(number: int, node: onnx.NodeProto, version: int) -> str:
    """Return a node's description in messages: number, operator, name, domain and operator set."""
    return f"node {number} ({node.op_type} {node.name!r} of domain {domain_of(node) or 'ai.onnx'}, opset {version})"


def _refused(
    node: onnx.NodeProto, version: int, conversions: Mapping[tuple[str, str], Conversion]
) -> str | None:
    """Return why a node is refused, or None."""
    domain, op = domain_of(node), node.op_type
    entry: Any = conversions.get((domain, op)) or (STOCK.get(op) if not domain else None)
    if entry is None and (domain, op) in CONVERSIONS:
        return (
            "TVM's converter is not known to honour it; import the model with"
            " tvm_stitch.importers.onnx.load.from_onnx, which has a converter of its own"
        )
    if entry is None:
        return _unknown(domain, op)
    if version < entry.since:
        return (
            f"it is of an old operator set; {op} is honoured from {entry.since} on:"
            f" convert the model (onnx.version_converter.convert_version)"
        )
    values = attributes_of(node, version, getattr(entry, "defaults", {}))
    for name, value in values.items():
        honoured = entry.attributes.get(name, ())
        if honoured is ANY or honoured == ANY or value in honoured:
            continue
        if not honoured and _without_effect(name, value):
            continue
        taken = " or ".join(repr(v) for v in honoured)
        advice = f"give it {taken}" if taken else "export the model without this attribute"
        return f"the attribute {name} = {_shown(value)} is not honoured; {advice}"
    return None


def _without_effect(name: str, value: Any) -> bool:
    """Return whether an attribute of old operator sets never changes a result."""
    return name == "consumed_inputs" or (name in ("seed",) and value is not None)


def _unknown(domain: str, op: str) -> str:
    """Return the reason for an operator without converter."""
    if not domain:
        if schema_of("", op, onnx.defs.onnx_opset_version()) is None:
            return "ONNX defines no such operator; name the domain of a custom one"
        return "no converter knows this operator; export the model without it"
    owner = _DOMAINS.get(domain)
    if domain == "com.microsoft":
        return (
            f"no converter knows this operator of {owner} own domain, which its optimizer writes; export the model"
            " without that optimization (graph_optimization_level ORT_ENABLE_BASIC at most)"
        )
    whose = f" of {owner} domain" if owner else ""
    return f"no converter knows this operator{whose}; give its body as a function of the model"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."
