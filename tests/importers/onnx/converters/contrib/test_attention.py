# SPDX-License-Identifier: Apache-2.0
"""Attention operators of ONNX Runtime compute what it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.importers.onnx.runs import MICROSOFT, RNG, compare, floats, model
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, domain=MICROSOFT, **attributes)


def test_packed_attention_with_lengths() -> None:
    compare(
        node("Attention", list("xwbm"), ["y"], num_heads=2),
        {"x": floats(2, 4, 8), "m": np.array([3, 4], "int32")},
        {"w": floats(8, 24), "b": floats(24)},
    )


def test_packed_causal_attention_with_a_past() -> None:
    compare(
        node("Attention", ["x", "w", "b", "", "p"], ["y", "q"], num_heads=2, unidirectional=1, scale=0.3),
        {"x": floats(2, 4, 8), "p": floats(2, 2, 2, 3, 4)},
        {"w": floats(8, 24), "b": floats(24)},
    )


def test_multi_head_attention_with_a_padding_mask() -> None:
    inputs = {"q": floats(2, 4, 8), "k": floats(2, 5, 8), "v": floats(2, 5, 8)}
    mask = (RNG.random((2, 5)) > 0.3).astype("int32")
    compare(
        node("MultiHeadAttention", list("qkvbm"), ["y"], num_heads=2),
        {**inputs, "m": mask},
        {"b": floats(24)},
    )


def test_multi_head_attention_with_a_past_and_a_bias() -> None:
    inputs = {name: floats(2, 4, 8) for name in "qkv"}
    inputs |= {"a": floats(1, 2, 4, 7), "c": floats(2, 2, 3, 4), "d": floats(2, 2, 3, 4)}
    names = ["q", "k", "v", "", "", "a", "c", "d"]
    compare(node("MultiHeadAttention", names, ["y", "ok", "ov"], num_heads=2), inputs)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    caches = {"c": floats(10, 4), "s": floats(10, 4)}
    places = np.array([[0, 1, 2, 3], [4, 5, 6, 7]])
    rotary = node("RotaryEmbedding", list("xpcs"), ["y"], interleaved=interleaved)
    compare(rotary, {"x": floats(2, 4, 16), "p": places}, caches)
    compare(rotary, {"x": floats(2, 2, 4, 8), "p": np.array([2])}, caches)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_grouped_attention_of_a_prompt(interleaved: int) -> None:
    inputs = {
        "q": floats(2, 4, 64),
        "k": floats(2, 4, 32),
        "v": floats(2, 4, 32),
        "s": np.array([3, 3], "int32"),
    }
    constants = {"t": np.array([4], "int32"), "c": floats(16, 8), "n": floats(16, 8)}
    names = ["q", "k", "v", "", "", "s", "t", "c", "n"]
    how = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "rotary_interleaved": interleaved}
    compare(node("GroupQueryAttention", names, ["y", "ok", "ov"], **how), inputs, constants)


@pytest.mark.parametrize("window", [-1, 3])
def test_grouped_attention_of_a_step(window: int) -> None:
    inputs = {"q": floats(2, 1, 32), "k": floats(2, 1, 16), "v": floats(2, 1, 16)}
    inputs |= {"a": floats(2, 2, 5, 8), "b": floats(2, 2, 5, 8), "s": np.array([5, 5], "int32")}
    names = ["q", "k", "v", "a", "b", "s", "t"]
    step = node(
        "GroupQueryAttention", names, ["y", "ok", "ov"], num_heads=4, kv_num_heads=2, local_window_size=window
    )
    compare(step, inputs, {"t": np.array([6], "int32")})


def test_packed_queries_keys_and_values_are_refused() -> None:
    packed = model(node("MultiHeadAttention", ["q"], ["y"], num_heads=2), {"q": floats(2, 4, 2, 3, 4)})
    with pytest.raises(UnsupportedModel, match="of domain com.microsoft, opset 1.: .*packed in one tensor"):
        from_onnx(packed)
