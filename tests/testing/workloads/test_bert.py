# SPDX-License-Identifier: Apache-2.0
"""The ONNX BERT encoder: its structure, its inputs, and its numbers against a NumPy one."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tvm_stitch.importers.onnx.compare import onnxruntime_call
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert, random_inputs

SMALL = BertConfig(layers=2, hidden=48, heads=4, sequence=10, ffn=96, vocabulary=50, batch=3)


def test_defaults_are_the_demo_model() -> None:
    model = build_bert()
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 17
    assert [tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in model.graph.input] == [
        (1, 128)
    ] * 3
    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [1, 128, 384]
    ops = Counter(node.op_type for node in model.graph.node)
    assert (ops["MatMul"], ops["Softmax"], ops["Erf"], ops["LayerNormalization"]) == (6 * 8, 6, 6, 13)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    assert shapes["layer5.ffn.inner.weight"] == (384, 1536)


def test_same_config_same_bytes_other_seed_other_weights() -> None:
    assert build_bert(SMALL).SerializeToString() == build_bert(SMALL).SerializeToString()
    other = BertConfig(**{**SMALL.__dict__, "seed": 1})
    assert build_bert(SMALL).SerializeToString() != build_bert(other).SerializeToString()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 50, "heads": 4}, "multiple of heads"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"opset": 16}, "opset must be at least 17"),
    ],
)
def test_bad_config_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BertConfig(**options)


def test_inputs_are_valid_and_padded() -> None:
    inputs = random_inputs(SMALL, seed=3)
    assert inputs.keys() == {"input_ids", "token_type_ids", "attention_mask"}
    assert all(value.shape == (3, 10) and value.dtype == np.int64 for value in inputs.values())
    assert inputs["input_ids"].min() >= 0 and inputs["input_ids"].max() < SMALL.vocabulary
    assert set(np.unique(inputs["token_type_ids"])) == {0, 1}
    mask = inputs["attention_mask"]
    assert (np.diff(mask, axis=1) <= 0).all(), "padding stands at the end"
    assert 0 in mask and (mask[:, 0] == 1).all()
    np.testing.assert_array_equal(random_inputs(SMALL, seed=3)["input_ids"], inputs["input_ids"])


def test_numbers_match_an_encoder_written_in_numpy() -> None:
    model, inputs = build_bert(SMALL), random_inputs(SMALL)
    (got,) = onnxruntime_call(model, inputs)()
    np.testing.assert_allclose(got, _encoder(model, inputs), rtol=1e-4, atol=1e-4)


def test_padded_positions_do_not_reach_the_others() -> None:
    model, inputs = build_bert(SMALL), random_inputs(SMALL)
    kept = inputs["attention_mask"] == 1
    changed = {**inputs, "input_ids": np.where(kept, inputs["input_ids"], (inputs["input_ids"] + 1) % 50)}
    before, after = onnxruntime_call(model, inputs)()[0], onnxruntime_call(model, changed)()[0]
    np.testing.assert_allclose(after[kept], before[kept], atol=1e-6)
    assert np.abs(after[~kept] - before[~kept]).max() > 1e-2


def _encoder(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Compute the same network in float64, from the model's weights alone."""
    w = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    cfg = SMALL

    def norm(x: np.ndarray, prefix: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return centred * scale * w[f"{prefix}.scale"] + w[f"{prefix}.bias"]

    def linear(x: np.ndarray, prefix: str) -> np.ndarray:
        return x @ w[f"{prefix}.weight"] + w[f"{prefix}.bias"]

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(cfg.batch, cfg.sequence, cfg.heads, -1).swapaxes(1, 2)

    x = w["embeddings.words"][inputs["input_ids"]] + w["embeddings.types"][inputs["token_type_ids"]]
    x = norm(x + w["embeddings.positions"], "embeddings.norm")
    mask = np.where(inputs["attention_mask"] == 1, 0.0, -np.inf)[:, None, None, :]
    for layer in range(cfg.layers):
        prefix = f"layer{layer}.attention"
        q, k, v = (heads(linear(x, f"{prefix}.{part}")) for part in ("query", "key", "value"))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(cfg.hidden // cfg.heads) + mask
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        context = (weights / weights.sum(-1, keepdims=True)) @ v
        merged = context.swapaxes(1, 2).reshape(x.shape)
        x = norm(linear(merged, f"{prefix}.output") + x, f"{prefix}.norm")
        prefix = f"layer{layer}.ffn"
        inner = linear(x, f"{prefix}.inner")
        gelu = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = norm(linear(gelu, f"{prefix}.outer") + x, f"{prefix}.norm")
    return x
