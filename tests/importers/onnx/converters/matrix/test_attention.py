# SPDX-License-Identifier: Apache-2.0
"""ONNX's own attention and rotary embedding compute what ONNX Runtime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import RNG, compare, floats

HEADS = {"q": floats(2, 4, 3, 8), "k": floats(2, 2, 5, 8), "v": floats(2, 2, 5, 6)}


@pytest.mark.parametrize("how", [{}, {"is_causal": 1}, {"scale": 0.3, "softcap": 2.0}])
def test_grouped_heads(how: dict[str, Any]) -> None:
    compare(helper.make_node("Attention", list("qkv"), ["y"], **how), HEADS, opset=23)


def test_flat_heads_with_a_boolean_mask_and_scores() -> None:
    inputs = {"q": floats(2, 3, 16), "k": floats(2, 5, 16), "v": floats(2, 5, 16)}
    inputs["m"] = RNG.random((3, 5)) > 0.3
    inputs["m"][:, 0] = True
    node = helper.make_node(
        "Attention", list("qkvm"), ["y", "", "", "s"], q_num_heads=2, kv_num_heads=2, qk_matmul_output_mode=3
    )
    compare(node, inputs, opset=23)


def test_a_past() -> None:
    past = {"a": floats(2, 2, 4, 8), "b": floats(2, 2, 4, 6)}
    node = helper.make_node("Attention", ["q", "k", "v", "", "a", "b"], ["y", "ok", "ov"], is_causal=1)
    compare(node, {**HEADS, **past}, opset=23)


@pytest.mark.parametrize("how", [{}, {"interleaved": 1}, {"rotary_embedding_dim": 4}])
def test_rotary_embedding(how: dict[str, Any]) -> None:
    half = how.get("rotary_embedding_dim", 8) // 2
    caches = {"c": floats(10, half), "s": floats(10, half)}
    inputs = {"x": floats(2, 3, 4, 8), "p": np.array([[0, 1, 2, 3], [4, 5, 6, 7]])}
    compare(
        helper.make_node("RotaryEmbedding", list("xcsp"), ["y"], **how),
        {"x": inputs["x"], **caches, "p": inputs["p"]},
        opset=23,
    )
