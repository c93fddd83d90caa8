# SPDX-License-Identifier: Apache-2.0
"""The workloads of the comparison with MetaSchedule, as Relax modules with inputs and float64 outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from comparison.workload_sizes import Sizes, chosen


@dataclass(frozen=True)
class RelaxWorkload:
    """A module whose ``main`` takes the inputs in order. Parameters are constants in it."""

    title: str
    mod: tvm.IRModule
    inputs: list[np.ndarray]

    def reference(self) -> list[np.ndarray]:
        """Return all outputs, computed in float64 by NumPy."""
        from stitch_testing.reference.relax import evaluate

        return evaluate(self.mod, self.inputs)


def workload(name: str, sizes: Sizes) -> RelaxWorkload:
    """Make the workload ``name``: ``encoder``, ``bert``, ``add_layernorm_softmax``, or the path of an ONNX model.

    Raises:
        ValueError: when there is no such workload.
    """
    return chosen(name, sizes, (encoder, bert, add_layernorm_softmax), onnx_model)


class _Model:
    """Emit operators into ``main``. Parameters are drawn on request."""

    def __init__(self, seed: int) -> None:
        self.builder = relax.BlockBuilder()
        self.rng = np.random.default_rng(seed)

    def emit(self, expr: Any) -> Any:
        return self.builder.emit(expr)

    def parameter(self, *shape: int, mean: float = 0.0, spread: float = 0.1) -> Any:
        return relax.const((mean + spread * self.rng.standard_normal(shape)).astype(np.float32))

    def norm(self, x: Any, hidden: int) -> Any:
        gamma, beta = self.parameter(hidden, mean=1.0), self.parameter(hidden)
        return self.emit(R.nn.layer_norm(x, gamma, beta, axes=[-1]))

    def linear(self, x: Any, columns: int, reduced: int) -> Any:
        weight = self.parameter(columns, reduced, spread=1 / math.sqrt(reduced))
        turned = self.emit(R.permute_dims(weight))
        return self.emit(R.add(self.emit(R.matmul(x, turned)), self.parameter(columns)))


def add_layernorm_softmax(sizes: Sizes) -> RelaxWorkload:
    """softmax(layer_norm(x + y)) over rows of ``sizes.hidden`` elements."""
    shape = (sizes.rows, sizes.hidden)
    model = _Model(sizes.seed)
    variables = [relax.Var(name, relax.TensorType(shape, "float32")) for name in ("x", "y")]
    with model.builder.function("main", variables):
        with model.builder.dataflow():
            normal = model.norm(model.emit(R.add(*variables)), sizes.hidden)
            body = model.builder.emit_output(R.nn.softmax(normal, axis=-1))
        model.builder.emit_func_output(body)
    inputs = [model.rng.standard_normal(shape).astype(np.float32) for _ in variables]
    title = f"add + layer norm + softmax <{shape[0]},{shape[1]}>"
    return RelaxWorkload(title, model.builder.get(), inputs)


def encoder(sizes: Sizes) -> RelaxWorkload:
    """``sizes.layers`` post-norm transformer encoder layers on x <batch * sequence, hidden>."""
    rows, hidden = sizes.batch * sizes.sequence, sizes.hidden
    model = _Model(sizes.seed)
    emit = model.emit

    def heads(x: Any) -> Any:
        split = emit(R.reshape(x, (sizes.batch, sizes.sequence, sizes.heads, sizes.head)))
        return emit(R.permute_dims(split, [0, 2, 1, 3]))

    def layer(x: Any) -> Any:
        query, key, value = (heads(model.linear(x, hidden, hidden)) for _ in range(3))
        product = emit(R.matmul(query, emit(R.permute_dims(key, [0, 1, 3, 2]))))
        scores = emit(R.multiply(product, relax.const(1 / math.sqrt(sizes.head), "float32")))
        context = emit(R.matmul(emit(R.nn.softmax(scores, axis=-1)), value))
        joined = emit(R.reshape(emit(R.permute_dims(context, [0, 2, 1, 3])), (rows, hidden)))
        attended = model.norm(emit(R.add(x, model.linear(joined, hidden, hidden))), hidden)
        up = model.linear(attended, sizes.ffn, hidden)
        erf = emit(R.erf(emit(R.multiply(up, relax.const(math.sqrt(0.5), "float32")))))
        sum_ = emit(R.add(erf, relax.const(1.0, "float32")))
        gelu = emit(R.multiply(emit(R.multiply(up, sum_)), relax.const(0.5, "float32")))
        down = model.linear(gelu, hidden, sizes.ffn)
        return model.norm(emit(R.add(attended, down)), hidden)

    x = relax.Var("x", relax.TensorType((rows, hidden), "float32"))
    with model.builder.function("main", [x]):
        with model.builder.dataflow():
            body = x
            for _ in range(sizes.layers):
                body = layer(body)
            body = model.builder.emit_output(body)
        model.builder.emit_func_output(body)
    inputs = [model.rng.standard_normal((rows, hidden)).astype(np.float32)]
    return RelaxWorkload(sizes.title("encoder"), model.builder.get(), inputs)


def bert(sizes: Sizes) -> RelaxWorkload:
    """Make a BERT encoder with embeddings and mask, through ONNX."""
    from tvm_stitch.testing.workloads import bert as model

    config = sizes.bert_config()
    return _from_onnx(sizes.title("BERT"), model.build_bert(config), model.random_inputs(config))


def onnx_model(path: str) -> RelaxWorkload:
    """Read a model from a file, with static shapes and random inputs."""
    import onnx

    from tvm_stitch.execution.tensors import make_inputs
    from tvm_stitch.importers.onnx.compare import input_specs

    proto = onnx.load(path)
    return _from_onnx(path, proto, make_inputs(input_specs(proto)))


def _from_onnx(title: str, proto: Any, inputs: dict[str, np.ndarray]) -> RelaxWorkload:
    from tvm_stitch.importers.onnx.compare import load_onnx

    model = load_onnx(proto)
    return RelaxWorkload(title, model.mod, [inputs[spec.name] for spec in model.inputs])
