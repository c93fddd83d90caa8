# SPDX-License-Identifier: Apache-2.0
"""The tables name attributes that ONNX has, and TVM's entries only operators and attributes that TVM's code names."""

from __future__ import annotations

import inspect
import re

import pytest
from onnx import defs
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_stitch.importers.onnx.converters import CONVERSIONS
from tvm_stitch.importers.onnx.honoured.stock import STOCK

SCHEMAS: dict[str, set[str]] = {}
for schema in defs.get_all_schemas_with_history():
    if schema.domain == "":
        SCHEMAS.setdefault(schema.name, set()).update(schema.attributes)


def test_attributes_are_those_of_onnx() -> None:
    ours = {op: set(c.attributes) for (domain, op), c in CONVERSIONS.items() if not domain and op in SCHEMAS}
    tables = ours | {op: set(s.attributes) for op, s in STOCK.items()}
    assert {op: names - SCHEMAS[op] for op, names in tables.items() if names - SCHEMAS[op]} == {}


@pytest.mark.parametrize("op", sorted(op for op in STOCK if ("", op) not in CONVERSIONS))
def test_tvm_reads_the_attributes(op: str) -> None:
    """TVM drops an attribute that its class never names."""
    converter = onnx_frontend._get_convert_map()[op]
    source = "".join(
        inspect.getsource(c) for c in converter.__mro__ if c.__module__ == onnx_frontend.__name__
    )
    if "_get_onnx_reduction" in source:
        source += inspect.getsource(onnx_frontend._get_onnx_reduction)
    named = set(re.findall(r"[\"'](\w+)[\"']", source))
    fixed = {
        name
        for name, values in STOCK[op].attributes.items()
        if isinstance(values, tuple) and len(values) == 1
    }
    assert set(STOCK[op].attributes) - named - fixed - {"dtype"} == set()


def test_attributes_that_tvm_drops_are_not_in_its_table() -> None:
    assert "If" not in onnx_frontend._get_convert_map()
    for op in ("IsInf", "ConvTranspose", "Resize", "Constant", "MaxPool", "LpPool", "LayerNormalization"):
        assert op not in STOCK and ("", op) in CONVERSIONS, op
