# SPDX-License-Identifier: Apache-2.0
"""Fused operators of ONNX Runtime's optimizer compute what it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import MICROSOFT, RNG, compare, floats
from tvm_stitch.importers.onnx.converters.contrib.fused import CONVERSIONS

X = {"x": floats(2, 3, 8)}
WEIGHTS = {"w": floats(3, 2, 3, 3), "b": floats(3)}
IDS = RNG.integers(0, 7, (2, 4)).astype("int32")
CASES: dict[str, tuple[Any, ...]] = {
    "FusedMatMul transA": (
        "FusedMatMul", "ab", {"transA": 1, "alpha": 0.5}, {"a": floats(2, 4, 3), "b": floats(2, 4, 5)}
    ),
    "FusedMatMul batch": (
        "FusedMatMul", "ab", {"transBatchA": 1, "transB": 1}, {"a": floats(3, 2, 4), "b": floats(2, 5, 4)}
    ),
    "FusedConv": ("FusedConv", "xwb", {"activation": "Relu", "pads": [1] * 4}, {"x": floats(1, 2, 5, 5)}, WEIGHTS),
    "FusedConv sum": (
        "FusedConv", "xwbz", {"activation": "LeakyRelu", "activation_params": [0.3]},
        {"x": floats(1, 2, 5, 5), "z": floats(1, 3, 3, 3)}, WEIGHTS,
    ),
    "FusedGemm": (
        "FusedGemm", "xwb", {"activation": "Relu", "alpha": 0.5, "beta": 2.0, "transB": 1},
        {"x": floats(2, 5)}, {"w": floats(3, 5), "b": floats(3)},
    ),
    "Gelu": ("Gelu", "x", {}, X),
    "FastGelu": ("FastGelu", "xb", {}, X, {"b": floats(8)}),
    "BiasGelu": ("BiasGelu", "xb", {}, X, {"b": floats(8)}),
    "QuickGelu": ("QuickGelu", "x", {"alpha": 1.3}, X),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_result(name: str) -> None:
    op, names, attributes, *given = CASES[name]
    compare(helper.make_node(op, list(names), ["y"], domain=MICROSOFT, **attributes), *given)


def test_skip_layer_normalization_without_beta() -> None:
    node = helper.make_node(
        "SkipLayerNormalization", ["x", "s", "g", "", "b"], ["y", "", "", "t"], domain=MICROSOFT, epsilon=1e-3
    )
    compare(node, {**X, "s": floats(2, 3, 8)}, {"g": floats(8), "b": floats(8)})


def test_skip_simplified_layer_normalization() -> None:
    node = helper.make_node(
        "SkipSimplifiedLayerNormalization",
        ["x", "s", "g"],
        ["y", "", "", "t"],
        domain=MICROSOFT,
        epsilon=1e-3,
    )
    compare(node, {**X, "s": floats(2, 3, 8)}, {"g": floats(8)})


def test_simplified_layer_normalization() -> None:
    compare(
        helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["y"], epsilon=1e-3), X, {"g": floats(8)}
    )


def test_embed_layer_normalization_counts_its_mask() -> None:
    node = helper.make_node("EmbedLayerNormalization", list("iswpegbm"), ["y", "c"], domain=MICROSOFT)
    tables = {"w": floats(7, 8), "p": floats(4, 8), "e": floats(2, 8), "g": floats(8), "b": floats(8)}
    compare(node, {"i": IDS, "s": IDS % 2, "m": (IDS > 2).astype("int32")}, tables)


def test_all_have_a_case() -> None:
    others = {"TransposeMatMul"}  # another name of FusedMatMul
    tested = {case[0] for case in CASES.values()}
    tested |= {op for _, op in CONVERSIONS if op.endswith("LayerNormalization")}
    assert {op for _, op in CONVERSIONS} == tested | others
    assert np.isfinite(X["x"]).all()
