# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on shapes is done at import, and comparisons that depend on sizes at run time are not."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, tirx

from tvm_stitch.compat import Analyzer
from tvm_stitch.graph.extent import as_plain_text
from tvm_stitch.importers.onnx.schema import attributes_of
from tvm_stitch.importers.onnx.symbolic import evaluated, symbolic_range

N = tirx.Var("n", "int64")


def value(op: str, *inputs: Any, **attributes: Any) -> Any:
    node = helper.make_node(op, [f"i{i}" for i in range(len(inputs))], ["y"], **attributes)
    return evaluated(node, 21, inputs, attributes_of(node, 21, {}))


def const(array: Any, dtype: str = "int64") -> relax.Expr:
    return relax.const(np.asarray(array, dtype), dtype)


def test_constants_are_computed() -> None:
    assert value("Div", const([-7, 7]), const([2, 2])).value.numpy().tolist() == [-3, 3], "towards zero"
    assert value("Add", const([1.5], "float32"), const([2], "float32")).value.numpy().tolist() == [3.5]
    assert value("Expand", const([1]), const([1 << 40])) is None, "too large for the import"


def test_shapes_are_computed() -> None:
    shape = relax.ShapeExpr([N, 8])
    assert [str(d) for d in value("Concat", shape, const([-1]), axis=0).values] == [
        "n",
        "T.int64(8)",
        "T.int64(-1)",
    ]
    assert value("Gather", shape, const(1)).value.numpy() == 8
    assert value("Gather", shape, const(0)).same_as(N)
    assert str(value("Mul", shape, const([2, 3])).values[0]) == "n * T.int64(2)"
    assert len(value("Slice", shape, const([1]), const([2**63 - 1])).value.numpy()) == 1


def test_arithmetic_of_sizes() -> None:
    shape, axes = relax.ShapeExpr([N, 8]), const([0])

    def text(found: Any) -> str:
        return as_plain_text(str(list(found) if isinstance(found, relax.ShapeExpr) else found))

    assert text(value("Neg", shape)) == "[0 - n, -8]"
    assert text(value("ReduceSum", shape, axes, keepdims=0)) == "n + 8"
    assert text(value("ReduceMax", shape, axes, keepdims=0)) == "max(n, 8)"
    assert text(value("ReduceMin", shape, axes, keepdims=1)) == "[min(n, 8)]"
    assert text(value("ReduceProd", shape, axes, keepdims=0)) == "n * 8"
    assert text(value("Mod", shape, const([3]))) == "[n % 3, 2]"
    assert value("Mod", shape, const([-3])) is None and value("Mod", shape, shape) is None
    assert text(value("Tile", shape, const([2]))) == "[n, 8, n, 8]"
    assert text(value("Expand", value("Gather", shape, const([0])), const([3]))) == "[n, n, n]"


def test_equality_is_decided_only_where_it_is_known() -> None:
    shape = relax.ShapeExpr([N, 8])
    assert value("Equal", shape, const([-1, 8])).value.numpy().tolist() == [False, True]
    assert value("Equal", shape, const([1, 8])) is None, "n may be 1"
    less = value("Sub", shape, const([9, 0]))
    assert value("Equal", less, const([-1, 8])) is None, "n may be 8"


def test_ranges_of_extents_have_no_new_symbol() -> None:
    """TVM gives the extent of such a range a symbol of its own, unequal to the extent that it counts."""
    past = tirx.Var("past", "int64")
    for start, limit, extent in ((const(0), N, N), (past, N + past, N), (const(0), N * 2 + 1, N * 2 + 1)):
        numbers = symbolic_range([start, limit, const(1)])
        assert numbers is not None
        (found,) = relax.BlockBuilder().normalize(numbers).ty.shape
        assert Analyzer().can_prove_equal(found, extent)
    assert symbolic_range([const(0), N - 1, const(1)]) is None, "it may be negative"
    assert symbolic_range([const(0), N, const(2)]) is None
    assert symbolic_range([const(0), const(4), const(1)]) is None
