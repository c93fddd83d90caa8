# SPDX-License-Identifier: Apache-2.0
"""Operators, attributes and operator sets outside of the tables are refused, and the message says what to do."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import helper

from tvm_stitch.importers.onnx.converters.node import ANY
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel, check_graph, is_honoured
from tvm_stitch.importers.onnx.honoured.stock import STOCK, Stock


def refusal(op: str, domain: str = "", opset: int = 21, **attributes: Any) -> str:
    node = helper.make_node(op, ["x"], ["y"], name="n", domain=domain, **attributes)
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")])
    try:
        check_graph(graph, {"": opset, domain: opset if not domain else 1})
    except UnsupportedModel as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("op", "how", "message"),
    [
        (
            "Resize",
            {"mode": "lanczos"},
            "mode = 'lanczos' is not honoured; give it 'nearest' or 'linear' or 'cubic'",
        ),
        ("Det", {}, "opset 21): no converter knows this operator; export the model without it"),
        ("Fancy", {}, "ONNX defines no such operator"),
        (
            "Fancy",
            {"domain": "com.microsoft"},
            "domain com.microsoft, opset 1): no converter knows this operator",
        ),
        (
            "Fancy",
            {"domain": "odd"},
            "of domain odd, opset 1): no converter knows this operator; give its body",
        ),
        ("Add", {"opset": 6}, "it is of an old operator set; Add is honoured from 7 on: convert the model"),
        ("ScatterND", {"opset": 16, "reduction": "odd"}, "reduction = 'odd' is not honoured; give it 'none'"),
        ("BatchNormalization", {"opset": 7, "spatial": 0}, "spatial = 0 is not honoured; give it 1"),
    ],
)
def test_refusals(op: str, how: dict[str, Any], message: str) -> None:
    assert message in refusal(op, **how)


def test_defaults_count_as_values() -> None:
    """Before operator set 7, BatchNormalization computes statistics of the batch unless ``is_test`` is set."""
    assert "is_test = 0 is not honoured" in refusal("BatchNormalization", opset=6)
    assert refusal("BatchNormalization", opset=6, is_test=1) == ""


def test_graphs_of_attributes_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STOCK, "If", Stock({"then_branch": ANY, "else_branch": ANY}))
    inner = helper.make_graph(
        [helper.make_node("Det", ["x"], ["z"])], "body", [], [onnx.ValueInfoProto(name="z")]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")])
    with pytest.raises(UnsupportedModel, match="node 0 .Det"):
        check_graph(graph, {"": 21})


def test_domains_are_not_mixed_up() -> None:
    assert is_honoured("", "Exp") and not is_honoured("com.microsoft", "Exp")
    assert is_honoured("com.microsoft", "FusedMatMul") and not is_honoured("", "FusedMatMul")
