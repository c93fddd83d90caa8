# SPDX-License-Identifier: Apache-2.0
"""Packed weights: their expression is the weight again."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relay

from stitch_testing.relay.reference import evaluate
from tests.compute.cpu.test_packing import convolution
from tests.relay.modules import drawn
from tvm_stitch.compute.contraction import Contraction
from tvm_stitch.compute.cpu.packing import packed
from tvm_stitch.graph.ir import Tensor
from tvm_stitch.relay.templates.packed_weights import PackedWeights, Product, unpacked

F32 = "float32"


def contraction(depth: int, columns: int, transposed: bool) -> Contraction:
    shape = (columns, depth) if transposed else (depth, columns)
    x, w, y = Tensor("x", (4, depth), F32), Tensor("w", shape, F32), Tensor("y", (4, columns), F32)
    return Contraction(x, w, y, 1, 4, columns, depth, transposed)


@pytest.mark.parametrize(
    "product",
    [contraction(3, 10, False), contraction(5, 16, True), convolution(2, 3, 5), convolution(5, 1, 1)],
    ids=["product", "transposed", "grouped", "depthwise"],
)
def test_the_expression_of_the_panels_is_the_weight(product: Product) -> None:
    shape = (product.right if isinstance(product, Contraction) else product.weight).shape
    weight = drawn(*shape)
    panels = packed(product, weight, 4)
    p = relay.var("p", shape=panels.shape)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([p], unpacked(p, product, 4))))
    (result,) = evaluate(mod, [panels])
    np.testing.assert_array_equal(result, weight)


def test_products_share_a_constant_of_one_layout() -> None:
    weights, constant = PackedWeights(), relay.const(drawn(10, 10))
    one = weights.of(constant, contraction(10, 10, False), 8)
    assert weights.of(constant, contraction(10, 10, False), 8).same_as(one)
    assert not weights.of(constant, contraction(10, 10, True), 8).same_as(one)
    assert weights.of(constant, contraction(10, 10, False), 16).data.shape == (1, 10, 16)
