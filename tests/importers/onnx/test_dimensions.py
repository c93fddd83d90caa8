# SPDX-License-Identifier: Apache-2.0
"""Names of dimensions that are arithmetic, and symbolic dimensions that may differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax

import tvm_stitch
from tests.importers.onnx.runs import compare, expected, floats, model
from tvm_stitch.importers.onnx.dimensions import arithmetic
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx


def cache(old: str, new: Any, whole: str) -> onnx.ModelProto:
    """Return a model that appends to a cache, and adds a tensor of the new size, which is its first input."""
    nodes = [
        helper.make_node("Concat", ["p", "x"], ["c"], axis=1),
        helper.make_node("Add", ["c", "m"], ["y"]),
    ]
    inputs = {"m": floats(1, 4, 2), "p": floats(1, 3, 2), "x": floats(1, 1, 2)}
    return model(nodes, inputs, dims={"m": ["b", whole, 2], "p": ["b", old, 2], "x": ["b", new, 2]})


def test_arithmetic() -> None:
    known = {"n": 5, "m": 3}
    assert [arithmetic(each, known) for each in ("n + 1", "2*n - m", "(n+m)//2", " n")] == [6, 7, 4, 5]
    assert [
        arithmetic(each, known) for each in ("k + 1", "n / 2", "n-", "f(n)", "n ** 2", "batch-size", "?")
    ] == [None] * 7


@pytest.mark.parametrize(("new", "whole"), [(1, "past_len + 1"), ("s", "past_len+s")])
def test_a_cache_grows_by_its_new_rows(new: Any, whole: str) -> None:
    proto = cache("past_len", new, whole)
    machine = relax.VirtualMachine(tvm_stitch.compile(from_onnx(proto), "llvm"), tvm.cpu())
    for old in (3, 6):
        given = {"m": floats(2, old + 1, 2), "p": floats(2, old, 2), "x": floats(2, 1, 2)}
        got = machine["main"](*map(tvm.runtime.tensor, given.values())).numpy()
        np.testing.assert_allclose(got, expected(proto, given)[0], 1e-6)
    mod = from_onnx(proto, {"p": [1, 3, 2], "x": [1, 1, 2]})
    assert int(mod["main"].params[0].ty.shape[1]) == 4


def test_dimensions_that_may_differ_are_refused() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"node 1 \(Add .* symbolic dimensions of different names may differ"
    ):
        from_onnx(cache("past_len", 1, "total_len"))


def test_sizes_among_tensors() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["n"]),
        helper.make_node("Greater", ["x", "zero"], ["above"]),
        helper.make_node("Where", ["above", "n", "none"], ["y"]),
    ]
    constants = {"first": np.int64(0), "zero": np.float32(0), "none": np.int64(0)}
    compare(nodes, {"x": floats(5, 3)}, constants, dims={"x": ["n", 3]})
