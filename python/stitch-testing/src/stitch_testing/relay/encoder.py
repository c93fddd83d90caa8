# SPDX-License-Identifier: Apache-2.0
"""Transformer encoders in Relay, imported from ONNX models or written in Relay's operators by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import numpy_helper
from tvm import relay

from tvm_stitch.testing.workloads import bert
from tvm_stitch.testing.workloads.bert import BertConfig


def import_onnx(model: onnx.ModelProto) -> tuple[tvm.IRModule, dict[str, Any]]:
    """Return the typed Relay module of an ONNX model with static shapes, and the remaining parameters.

    Initializers become constants. As parameters, initializers that define shapes would make the shapes dynamic.
    """
    _restore_onnx_mapping()
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in model.graph.input
    }
    mod, params = relay.frontend.from_onnx(model, shape=shapes, freeze_params=True)
    return relay.transform.InferType()(mod), dict(params)


def _restore_onnx_mapping() -> None:
    """Give onnx 1.19 and newer the table that Relay's importer takes from older ones."""
    if hasattr(onnx, "mapping"):
        return
    from types import SimpleNamespace

    types = (value for name, value in onnx.TensorProto.DataType.items() if name != "UNDEFINED")
    table = {value: onnx.helper.tensor_dtype_to_np_dtype(value) for value in types}
    onnx.mapping = SimpleNamespace(TENSOR_TYPE_TO_NP_TYPE=table)


def bert_from_onnx(config: BertConfig) -> tuple[tvm.IRModule, dict[str, Any]]:
    """Import the encoder of ``build_bert(config)`` into Relay, and return the module and its parameters."""
    return import_onnx(bert.build_bert(config))


def bert_in_relay(config: BertConfig) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """Build the same encoder with the same weights, in the operators that Relay's own model zoo would use.

    ``main`` takes ``input_ids``, ``token_type_ids`` and ``attention_mask``, all int64 <batch, sequence>, and the
    parameters. It returns the last hidden state, float32 <batch, sequence, hidden>.
    """
    weights = _Weights(bert.build_bert(config))
    tokens = (config.batch, config.sequence)
    inputs = {
        name: relay.var(name, shape=tokens, dtype="int64")
        for name in ("input_ids", "token_type_ids", "attention_mask")
    }
    word = relay.take(weights("embeddings.words"), inputs["input_ids"], axis=0)
    segment = relay.take(weights("embeddings.types"), inputs["token_type_ids"], axis=0)
    x = relay.add(relay.add(word, segment), weights("embeddings.positions"))
    x = _layer_norm(x, weights, "embeddings.norm")
    kept = relay.cast(
        relay.reshape(inputs["attention_mask"], (config.batch, 1, 1, config.sequence)), "float32"
    )
    mask = relay.multiply(relay.subtract(relay.const(1.0), kept), relay.const(-10000.0))
    for layer in range(config.layers):
        x = encoder_layer(x, mask, config, weights, f"layer{layer}")
    return _module(x, list(inputs.values()), weights)


def layer_in_relay(config: BertConfig) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """Build only the first encoder layer, of ``x`` float32 <batch, sequence, hidden> without mask, with parameters."""
    weights = _Weights(bert.build_bert(config))
    x = relay.var("x", shape=(config.batch, config.sequence, config.hidden), dtype="float32")
    return _module(encoder_layer(x, None, config, weights, "layer0"), [x], weights)


class _Weights:
    """A model's weights by name, as variables of the function on request."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self.used: dict[str, np.ndarray] = {}
        self.variables: dict[str, relay.Var] = {}

    def __call__(self, name: str, change: Callable[[np.ndarray], np.ndarray] = np.asarray) -> relay.Var:
        """Return the variable of a weight, which ``change`` transforms before it is stored."""
        if name not in self.variables:
            array = np.ascontiguousarray(change(self.arrays[name]))
            key = name.replace(".", "_")
            self.used[key] = array
            self.variables[name] = relay.var(key, shape=array.shape, dtype=str(array.dtype))
        return self.variables[name]


def _module(
    body: relay.Expr, inputs: list[relay.Var], weights: _Weights
) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    function = relay.Function([*inputs, *weights.variables.values()], body)
    return relay.transform.InferType()(tvm.IRModule.from_expr(function)), weights.used


def encoder_layer(
    x: relay.Expr, mask: relay.Expr | None, config: BertConfig, weights: Any, prefix: str
) -> relay.Expr:
    """Build self-attention and feed-forward network of ``x`` <batch, sequence, hidden>, with residuals and norms.

    ``mask`` <batch, 1, 1, sequence> is added to the scores. ``weights`` gives a variable for a name.
    """
    batch, sequence, hidden, heads = config.batch, config.sequence, config.hidden, config.heads
    size = hidden // heads
    rows = relay.reshape(x, (batch * sequence, hidden))

    def split(which: str) -> relay.Expr:
        flat = _linear(rows, weights, f"{prefix}.attention.{which}")
        parts = relay.transpose(relay.reshape(flat, (batch, sequence, heads, size)), (0, 2, 1, 3))
        return relay.reshape(parts, (batch * heads, sequence, size))

    scores = relay.nn.batch_matmul(split("query"), split("key"))
    scores = relay.reshape(scores, (batch, heads, sequence, sequence))
    scores = relay.multiply(scores, relay.const(1 / math.sqrt(size), "float32"))
    scores = scores if mask is None else relay.add(scores, mask)
    probability = relay.reshape(relay.nn.softmax(scores), (batch * heads, sequence, sequence))
    context = relay.nn.batch_matmul(probability, split("value"), transpose_b=False)
    context = relay.transpose(relay.reshape(context, (batch, heads, sequence, size)), (0, 2, 1, 3))
    context = relay.reshape(context, (batch * sequence, hidden))
    attended = relay.add(_linear(context, weights, f"{prefix}.attention.output"), rows)
    attended = _layer_norm(attended, weights, f"{prefix}.attention.norm")
    inner = _gelu(_linear(attended, weights, f"{prefix}.ffn.inner"))
    outer = relay.add(_linear(inner, weights, f"{prefix}.ffn.outer"), attended)
    return relay.reshape(_layer_norm(outer, weights, f"{prefix}.ffn.norm"), (batch, sequence, hidden))


def _linear(x: relay.Expr, weights: Any, prefix: str) -> relay.Expr:
    # relay.nn.dense wants <units, inputs>. The models hold <inputs, units>.
    product = relay.nn.dense(x, weights(f"{prefix}.weight", np.transpose))
    return relay.nn.bias_add(product, weights(f"{prefix}.bias"), axis=-1)


def _layer_norm(x: relay.Expr, weights: Any, prefix: str) -> relay.Expr:
    return relay.nn.layer_norm(
        x, weights(f"{prefix}.scale"), weights(f"{prefix}.bias"), axis=-1, epsilon=1e-12
    )


def _gelu(x: relay.Expr) -> relay.Expr:
    """Return x * (1 + erf(x / sqrt(2))) / 2."""
    erf = relay.erf(relay.multiply(x, relay.const(math.sqrt(0.5), "float32")))
    product = relay.multiply(x, relay.add(erf, relay.const(1.0)))
    return relay.multiply(product, relay.const(0.5))


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return ONNX Runtime's results on the CPU (needs onnxruntime)."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(inputs))
