# SPDX-License-Identifier: Apache-2.0
"""A BERT encoder as an ONNX model with seeded weights, built node by node with onnx.helper."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Added to the attention scores of a masked position: exp() of it is 0 in float32.
_MASKED = -10000.0
_IR_VERSION = 8


@dataclass(frozen=True)
class BertConfig:
    """Sizes of the encoder. The defaults are those of `make run`.

    ``hidden`` must be a multiple of ``heads`` and ``opset`` at least 17 (LayerNormalization).
    """

    layers: int = 6
    hidden: int = 384
    heads: int = 12
    sequence: int = 128
    ffn: int = 1536
    vocabulary: int = 8192
    batch: int = 1
    opset: int = 17
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "sequence", "ffn", "vocabulary", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        if self.opset < 17:
            raise ValueError(f"opset must be at least 17 for LayerNormalization, got {self.opset}")


def build_bert(config: BertConfig | None = None) -> onnx.ModelProto:
    """Build the encoder.

    The inputs are int64 of shape (batch, sequence): ``input_ids`` in [0, vocabulary), ``token_type_ids`` in {0, 1}
    and ``attention_mask`` (1: attend, 0: padding). The output ``last_hidden_state`` is float32 of shape (batch,
    sequence, hidden). The same config gives the same bytes.
    """
    return _Builder(config or BertConfig()).model()


def random_inputs(config: BertConfig | None = None, seed: int = 1) -> dict[str, np.ndarray]:
    """Draw inputs for :func:`build_bert`'s model: random tokens, two segments, and padding at each row's end."""
    config = config or BertConfig()
    rng = np.random.default_rng(seed)
    shape = (config.batch, config.sequence)
    positions = np.arange(config.sequence)
    length = rng.integers(max(1, config.sequence * 3 // 4), config.sequence + 1, size=(config.batch, 1))
    return {
        "input_ids": rng.integers(0, config.vocabulary, size=shape, dtype=np.int64),
        "token_type_ids": np.broadcast_to(positions >= config.sequence // 2, shape).astype(np.int64),
        "attention_mask": (positions < length).astype(np.int64),
    }


class _Builder:
    """Collects nodes and weights. Each method adds one component of the network and returns its output's name."""

    def __init__(self, config: BertConfig) -> None:
        self.config = config
        self.rng = np.random.default_rng(config.seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.names: set[str] = set()

    def model(self) -> onnx.ModelProto:
        cfg = self.config
        hidden = self.embeddings()
        mask = self.mask()
        for layer in range(cfg.layers):
            hidden = self.attention(hidden, mask, f"layer{layer}.attention")
            hidden = self.feed_forward(hidden, f"layer{layer}.ffn")
        self.node("Identity", [hidden], name="last_hidden_state")
        tokens = (cfg.batch, cfg.sequence)
        graph = helper.make_graph(
            self.nodes,
            "bert_encoder",
            [
                helper.make_tensor_value_info(name, TensorProto.INT64, tokens)
                for name in ("input_ids", "token_type_ids", "attention_mask")
            ],
            [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, (*tokens, cfg.hidden))],
            self.weights,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", cfg.opset)],
            ir_version=_IR_VERSION,
            producer_name="tvm_stitch",
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def node(self, op: str, inputs: list[str], *, name: str, **attributes: object) -> str:
        if name in self.names:
            raise ValueError(f"two nodes named {name}")
        self.names.add(name)
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: np.ndarray) -> str:
        if name not in self.names:
            self.names.add(name)
            self.weights.append(numpy_helper.from_array(value, name))
        return name

    def scalar(self, value: float) -> str:
        return self.constant(f"const_{value!r}", np.array(value, dtype=np.float32))

    def random(self, name: str, shape: tuple[int, ...], mean: float = 0.0, std: float = 0.02) -> str:
        # 0.02 is BERT's own. Biases and norms are random too, so that an error in them cannot hide.
        value = mean + std * self.rng.standard_normal(shape)
        return self.constant(name, value.astype(np.float32))

    def linear(self, x: str, rows: int, columns: int, prefix: str) -> str:
        weight = self.random(f"{prefix}.weight", (rows, columns), std=rows**-0.5)
        product = self.node("MatMul", [x, weight], name=f"{prefix}.matmul")
        return self.node("Add", [product, self.random(f"{prefix}.bias", (columns,))], name=f"{prefix}.out")

    def layer_norm(self, x: str, prefix: str) -> str:
        scale = self.random(f"{prefix}.scale", (self.config.hidden,), mean=1.0, std=0.1)
        bias = self.random(f"{prefix}.bias", (self.config.hidden,), std=0.1)
        return self.node("LayerNormalization", [x, scale, bias], name=f"{prefix}.out", axis=-1, epsilon=1e-12)

    def gelu(self, x: str, prefix: str) -> str:
        """Add x * (1 + erf(x / sqrt(2))) / 2, as exporters write it."""
        scaled = self.node("Div", [x, self.scalar(math.sqrt(2.0))], name=f"{prefix}.scaled")
        erf = self.node("Erf", [scaled], name=f"{prefix}.erf")
        shifted = self.node("Add", [erf, self.scalar(1.0)], name=f"{prefix}.shifted")
        product = self.node("Mul", [x, shifted], name=f"{prefix}.product")
        return self.node("Mul", [product, self.scalar(0.5)], name=f"{prefix}.out")

    def embeddings(self) -> str:
        cfg = self.config
        words = self.random("embeddings.words", (cfg.vocabulary, cfg.hidden), std=1.0)
        types = self.random("embeddings.types", (2, cfg.hidden), std=1.0)
        positions = self.random("embeddings.positions", (1, cfg.sequence, cfg.hidden), std=1.0)
        word = self.node("Gather", [words, "input_ids"], name="embeddings.word", axis=0)
        segment = self.node("Gather", [types, "token_type_ids"], name="embeddings.segment", axis=0)
        total = self.node("Add", [word, segment], name="embeddings.word_segment")
        total = self.node("Add", [total, positions], name="embeddings.sum")
        return self.layer_norm(total, "embeddings.norm")

    def mask(self) -> str:
        """Add a mask (batch, 1, 1, sequence): 0 for attended positions, a large negative number for padding."""
        axes = self.constant("mask.axes", np.array([1, 2], dtype=np.int64))
        wide = self.node("Unsqueeze", ["attention_mask", axes], name="mask.wide")
        kept = self.node("Cast", [wide], name="mask.float", to=TensorProto.FLOAT)
        dropped = self.node("Sub", [self.scalar(1.0), kept], name="mask.dropped")
        return self.node("Mul", [dropped, self.scalar(_MASKED)], name="mask.out")

    def attention(self, x: str, mask: str, prefix: str) -> str:
        cfg = self.config
        head = cfg.hidden // cfg.heads
        split = self.constant("shape.split", np.array([cfg.batch, cfg.sequence, cfg.heads, head], np.int64))
        merged = self.constant("shape.merged", np.array([cfg.batch, cfg.sequence, cfg.hidden], np.int64))

        def heads(which: str, order: tuple[int, ...]) -> str:
            flat = self.linear(x, cfg.hidden, cfg.hidden, f"{prefix}.{which}")
            parts = self.node("Reshape", [flat, split], name=f"{prefix}.{which}.split")
            return self.node("Transpose", [parts], name=f"{prefix}.{which}.heads", perm=list(order))

        query = heads("query", (0, 2, 1, 3))
        key = heads("key", (0, 2, 3, 1))
        value = heads("value", (0, 2, 1, 3))
        scores = self.node("MatMul", [query, key], name=f"{prefix}.scores")
        scores = self.node("Div", [scores, self.scalar(math.sqrt(head))], name=f"{prefix}.scaled")
        scores = self.node("Add", [scores, mask], name=f"{prefix}.masked")
        weights = self.node("Softmax", [scores], name=f"{prefix}.softmax", axis=-1)
        context = self.node("MatMul", [weights, value], name=f"{prefix}.context")
        context = self.node("Transpose", [context], name=f"{prefix}.transposed", perm=[0, 2, 1, 3])
        context = self.node("Reshape", [context, merged], name=f"{prefix}.merged")
        output = self.linear(context, cfg.hidden, cfg.hidden, f"{prefix}.output")
        residual = self.node("Add", [output, x], name=f"{prefix}.residual")
        return self.layer_norm(residual, f"{prefix}.norm")

    def feed_forward(self, x: str, prefix: str) -> str:
        cfg = self.config
        inner = self.linear(x, cfg.hidden, cfg.ffn, f"{prefix}.inner")
        outer = self.linear(self.gelu(inner, f"{prefix}.gelu"), cfg.ffn, cfg.hidden, f"{prefix}.outer")
        residual = self.node("Add", [outer, x], name=f"{prefix}.residual")
        return self.layer_norm(residual, f"{prefix}.norm")
