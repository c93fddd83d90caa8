# SPDX-License-Identifier: Apache-2.0
"""Nodes: views, kinds, and copies of graphs."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax
from tvm.relax import op as R

from stitch_testing.validate import validate
from tests.graph.helpers import build, legalize, prim_funcs, single, symbol
from tests.scope.nodes import compute, memory
from tvm_stitch import compat
from tvm_stitch.graph.reader import read
from tvm_stitch.scope.node import Node, NodeKind, kind_of, specialize

F32 = "float32"
PARAMETERS = relax.const(0.5, "float32"), relax.const(0, "int8")


def test_views() -> None:
    assert memory("view", ["x"], "v").is_view
    assert not memory("exp", ["x"], "v").is_view and not compute(["x"], "m").is_view


def test_a_transposition_is_no_view() -> None:
    node = memory("exp", ["x"], "v")
    node.graph = single(lambda emit, x: R.permute_dims(x), ((4, 8), F32))
    assert not node.is_view
    node.graph = single(lambda emit, x: R.permute_dims(x), ((1, 8), F32))
    assert node.is_view, "moving a dimension of one element moves nothing"
    node.graph = single(lambda emit, x: R.astype(x, "float16"), ((4, 8), F32))
    assert not node.is_view
    node.graph = single(lambda emit, x: R.strided_slice(x, [0], [0], [2]), ((4, 8), F32))
    assert not node.is_view


def test_a_single_element_is_a_view_of_a_single_element_only() -> None:
    node = memory("exp", ["x"], "v")
    node.graph = single(lambda emit, x: R.expand_dims(x, 0), ((1, 1), F32))
    assert node.is_view
    node.graph = single(lambda emit, x: R.permute_dims(x), ((1, 1), F32))
    assert node.is_view
    node.graph = single(lambda emit, x: R.strided_slice(x, [0], [3], [4]), ((8,), F32))
    assert not node.is_view
    node.graph = single(lambda emit, x: R.broadcast_to(x, (1, 8)), ((1, 1), F32))
    assert not node.is_view
    node.graph = single(lambda emit, x: R.exp(x), ((1, 1), F32))
    assert not node.is_view


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        ("float32", "bfloat16", True),
        ("float16", "float64", True),
        ("float32", "int8", False),
        ("bool", "float32", False),
    ],
)
def test_casts_from_float_to_float(source: str, target: str, found: bool) -> None:
    node = memory("exp", ["x"], "v")
    node.graph = single(lambda emit, x: R.astype(x, target), ((4, 8), source))
    assert node.is_float_cast == found
    node.graph = single(lambda emit, x: R.permute_dims(x), ((4, 8), source))
    assert not node.is_float_cast


def test_kinds() -> None:
    assert kind_of(single(lambda emit, x: R.exp(x), ((4, 8), F32))) is NodeKind.MEMORY
    matmul = single(lambda emit, x, y: R.matmul(x, y), ((4, 8), F32), ((8, 3), F32))
    assert kind_of(matmul) is NodeKind.COMPUTE


def test_specialize_replaces_symbols_everywhere() -> None:
    n = symbol()
    mod = legalize(build(lambda emit, x: R.sum(emit(R.exp(x)), -1, True), ((n, 8), F32)))
    for func in prim_funcs(mod).values():
        op_graph = read(func)
        formal = {
            v
            for t in op_graph.tensors()
            for s in t.shape
            if not isinstance(s, int)
            for v in compat.free_vars(s)
        }
        assert len(formal) == 1
        before = str(op_graph)
        made = specialize(op_graph, dict.fromkeys(formal, 5))
        validate(made)
        assert all(isinstance(s, int) for t in made.tensors() for s in t.shape)
        assert all(isinstance(e, int) for op in made.operators for e in op.extents)
        assert str(op_graph) == before and specialize(op_graph, {}) is op_graph
        other = symbol("other")
        renamed = specialize(op_graph, dict.fromkeys(formal, other))
        validate(renamed)
        assert any(
            compat.same_var(s, other) for t in renamed.tensors() for s in t.shape if not isinstance(s, int)
        )


def test_copies_are_wired_anew() -> None:
    n = symbol()
    op_graph = single(lambda emit, x: R.exp(x), ((n, 8), F32))
    (formal,) = {v for s in op_graph.inputs[0].shape if not isinstance(s, int) for v in compat.free_vars(s)}
    made = specialize(op_graph, {formal: 3})
    assert made.operators[0] is not op_graph.operators[0]
    assert made.inputs[0].consumers == [made.operators[0]] and op_graph.inputs[0].consumers == [
        op_graph.operators[0]
    ]


@pytest.mark.parametrize(
    ("body", "dtypes", "widened"),
    [
        (lambda emit, x: R.astype(x, "float32"), ["float16"], True),
        (lambda emit, x: R.astype(x, "float16"), ["float32"], False),
        (lambda emit, x: R.astype(x, "int32"), ["float32"], False),
        (
            lambda emit, x: R.dequantize(x, *PARAMETERS, out_dtype="float32"),
            ["int8"],
            True,
        ),
        (lambda emit, x: R.permute_dims(x), ["int8"], False),
    ],
    ids=["wider", "narrower", "as wide", "dequantized", "moved"],
)
def test_what_widens(body: Any, dtypes: list[str], widened: bool) -> None:
    graph = single(body, *(((8, 64), dtype) for dtype in dtypes))
    node = Node("n", NodeKind.MEMORY, ["x"], ["y"], graph)
    assert node.widens is widened and node.widened == ("x" if widened else None)
