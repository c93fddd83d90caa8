# SPDX-License-Identifier: Apache-2.0
"""The workloads of the comparison with Ansor, as Relay modules with parameters, inputs and float64 outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relay

from comparison.workload_sizes import Sizes, chosen

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RelayWorkload:
    """A module whose ``main`` takes the inputs and parameters by name."""

    title: str
    mod: Any
    params: Arrays
    inputs: Arrays

    def reference(self) -> list[np.ndarray]:
        """Return all outputs, computed in float64 by NumPy."""
        from stitch_testing.relay.reference import evaluate

        return evaluate(self.mod, dict(self.inputs), dict(self.params))


def workload(name: str, sizes: Sizes) -> RelayWorkload:
    """Make the workload ``name``: ``encoder``, ``bert``, ``add_layernorm_softmax``, or the path of an ONNX model.

    Raises:
        ValueError: when there is no such workload.
    """
    return chosen(name, sizes, (encoder, bert, add_layernorm_softmax), onnx_model)


def add_layernorm_softmax(sizes: Sizes) -> RelayWorkload:
    """softmax(layer_norm(x + y)) over rows of ``sizes.hidden`` elements."""
    shape = (sizes.rows, sizes.hidden)
    x, y = relay.var("x", shape=shape), relay.var("y", shape=shape)
    gamma, beta = relay.var("gamma", shape=shape[1:]), relay.var("beta", shape=shape[1:])
    body = relay.nn.softmax(relay.nn.layer_norm(x + y, gamma, beta))
    rng = np.random.default_rng(sizes.seed)
    params = {
        "gamma": (1 + 0.1 * rng.standard_normal(shape[1:])).astype(np.float32),
        "beta": (0.1 * rng.standard_normal(shape[1:])).astype(np.float32),
    }
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name in ("x", "y")}
    title = f"add + layer norm + softmax <{shape[0]},{shape[1]}>"
    return RelayWorkload(title, _module([x, y, gamma, beta], body), params, inputs)


def encoder(sizes: Sizes) -> RelayWorkload:
    """``sizes.layers`` post-norm transformer encoder layers on x <batch * sequence, hidden>."""
    rows, hidden = sizes.batch * sizes.sequence, sizes.hidden
    rng = np.random.default_rng(sizes.seed)
    params: dict[str, np.ndarray] = {}
    variables = [relay.var("x", shape=(rows, hidden))]

    def parameter(name: str, *shape: int, mean: float = 0.0, spread: float = 0.1) -> Any:
        params[name] = (mean + spread * rng.standard_normal(shape)).astype(np.float32)
        variables.append(relay.var(name, shape=shape))
        return variables[-1]

    def linear(x: Any, name: str, columns: int, reduced: int) -> Any:
        weight = parameter(f"{name}_weight", columns, reduced, spread=1 / math.sqrt(reduced))
        return relay.nn.bias_add(relay.nn.dense(x, weight), parameter(f"{name}_bias", columns))

    def norm(x: Any, name: str) -> Any:
        return relay.nn.layer_norm(
            x, parameter(f"{name}_gamma", hidden, mean=1.0), parameter(f"{name}_beta", hidden)
        )

    def heads(x: Any, axes: tuple[int, ...]) -> Any:
        split = relay.reshape(x, (sizes.batch, sizes.sequence, sizes.heads, sizes.head))
        swapped = relay.transpose(split, axes)
        return relay.reshape(swapped, (sizes.batch * sizes.heads, sizes.sequence, sizes.head))

    def layer(x: Any, place: int) -> Any:
        of = f"layer{place}_"
        query, key = (heads(linear(x, of + n, hidden, hidden), (0, 2, 1, 3)) for n in ("query", "key"))
        value = linear(x, of + "value", hidden, hidden)
        scores = relay.nn.batch_matmul(query, key) * relay.const(1 / math.sqrt(sizes.head))
        turned = relay.transpose(heads(value, (0, 2, 1, 3)), (0, 2, 1))
        context = relay.nn.batch_matmul(relay.nn.softmax(scores), turned)
        split = relay.reshape(context, (sizes.batch, sizes.heads, sizes.sequence, sizes.head))
        joined = relay.reshape(relay.transpose(split, (0, 2, 1, 3)), (rows, hidden))
        attended = norm(x + linear(joined, of + "out", hidden, hidden), of + "attention_norm")
        up = linear(attended, of + "up", sizes.ffn, hidden)
        gelu = up * (relay.erf(up * relay.const(math.sqrt(0.5))) + relay.const(1.0)) * relay.const(0.5)
        return norm(attended + linear(gelu, of + "down", hidden, sizes.ffn), of + "output_norm")

    body = variables[0]
    for place in range(sizes.layers):
        body = layer(body, place)
    inputs = {"x": rng.standard_normal((rows, hidden)).astype(np.float32)}
    return RelayWorkload(sizes.title("encoder"), _module(variables, body), params, inputs)


def bert(sizes: Sizes) -> RelayWorkload:
    """Return a BERT encoder with embeddings and mask."""
    from stitch_testing.relay.encoder import bert_in_relay
    from tvm_stitch.testing.workloads.bert import random_inputs

    config = sizes.bert_config()
    mod, params = bert_in_relay(config)
    return RelayWorkload(sizes.title("BERT"), mod, params, random_inputs(config))


def onnx_model(path: str) -> RelayWorkload:
    """Read a model from a file, with static shapes and random inputs."""
    import onnx

    from tvm_stitch.execution.tensors import make_inputs
    from tvm_stitch.importers.onnx.compare import input_specs

    proto = onnx.load(path)
    return _from_onnx(path, proto, make_inputs(input_specs(proto)))


def _from_onnx(title: str, proto: Any, inputs: Arrays) -> RelayWorkload:
    from tvm.relay.frontend import from_onnx

    shapes = {name: value.shape for name, value in inputs.items()}
    mod, params = from_onnx(proto, shapes)
    mod = relay.transform.DynamicToStatic()(relay.transform.InferType()(mod))
    return RelayWorkload(title, mod, {name: value.numpy() for name, value in params.items()}, inputs)


def _module(variables: list[Any], body: Any) -> Any:
    return relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(variables, body)))
