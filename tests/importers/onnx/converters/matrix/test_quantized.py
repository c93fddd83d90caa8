# SPDX-License-Identifier: Apache-2.0
"""Quantization of tensors, axes and blocks, of 4 to 16 bits, computes what ONNX Runtime does."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import RNG, compare, floats

X = {"x": floats(3, 8) * 4}


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_weights_of_four_bits_in_blocks(kind: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, kind))
    low = -8 if kind == "int4" else 0
    weights = RNG.integers(low, low + 16, (8, 6)).astype(dtype)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["r"], axis=0, block_size=4),
        helper.make_node("MatMul", ["x", "r"], ["y"]),
    ]
    compare(nodes, X, {"w": weights, "s": floats(2, 6), "z": np.full((2, 6), 3).astype(dtype)})


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("axis", [None, 1])
def test_there_and_back(kind: str, axis: int | None) -> None:
    count: Any = () if axis is None else (8,)
    constants = {"s": np.full(count, 0.1, "float32"), "z": np.full(count, 3, kind)}
    how = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", list("xsz"), ["q"], **how),
        helper.make_node("DequantizeLinear", list("qsz"), ["y"], **how),
    ]
    compare(nodes, X, constants, atol=0.11)


def test_a_tensor_of_zeros_quantizes_dynamically() -> None:
    compare(helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"]), {"x": np.zeros(5, "float32")})


def test_products_of_integers() -> None:
    a, b = (RNG.integers(0, 256, shape).astype("uint8") for shape in ((3, 8), (8, 5)))
    compare(
        helper.make_node("MatMulInteger", list("abzw"), ["y"]),
        {"a": a, "b": b},
        {"z": np.uint8(3), "w": np.uint8(9)},
    )
    scales = {
        "s": np.float32(0.02),
        "z": np.uint8(3),
        "t": np.float32(0.1),
        "w": np.uint8(9),
        "o": np.float32(0.9),
        "p": np.uint8(7),
    }
    compare(helper.make_node("QLinearMatMul", list("aszbtwop"), ["y"]), {"a": a, "b": b}, scales, atol=1)
