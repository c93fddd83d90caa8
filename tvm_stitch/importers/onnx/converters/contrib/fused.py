# SPDX-License-Identifier: Apache-2.0
"""Fused matmuls, convolutions, activations and normalizations of ONNX Runtime."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..elementwise import gelu, gelu_tanh
from ..matrix.convolution import convolved, with_bias
from ..node import ANY, Conversion, Node, Unsupported, dtype_of, scalar, shape_of
from ..normalization import layer_norm, rms_norm

DOMAIN = "com.microsoft"
_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid")


def _transposed(node: Node, x: relax.Expr, last: bool, batch: bool) -> relax.Expr:
    """Return a matrix or a batch of them, transposed.

    ``batch`` says that the rows come before the batch, ``last`` that the two last dimensions are swapped.
    """
    rank = len(shape_of(x))
    order = list(range(rank))
    if batch and rank > 2:
        order = [*order[1:-1], order[0], order[-1]]
    if last and rank > 1:
        order[-1], order[-2] = order[-2], order[-1]
    return x if order == list(range(rank)) else node.emit(relax.op.permute_dims(x, order))


def _fused_matmul(node: Node) -> relax.Expr:
    given = node.attributes
    a = _transposed(node, node.tensor(0), given["transA"], given["transBatchA"])
    b = _transposed(node, node.tensor(1), given["transB"], given["transBatchB"])
    y = node.emit(relax.op.matmul(a, b))
    return y if given["alpha"] == 1.0 else relax.op.multiply(y, scalar(given["alpha"], node.dtype(0)))


def _activated(node: Node, y: relax.Expr, name: str, numbers: list[float]) -> relax.Expr:
    dtype = dtype_of(y)
    if name == "Relu":
        return relax.op.nn.relu(y)
    if name in ("Sigmoid", "Tanh"):
        return relax.op.sigmoid(y) if name == "Sigmoid" else relax.op.tanh(y)
    if name == "LeakyRelu":
        return relax.op.nn.leakyrelu(y, numbers[0] if numbers else 0.01)
    if name == "Clip" and len(numbers) == 2:
        return relax.op.minimum(relax.op.maximum(y, scalar(numbers[0], dtype)), scalar(numbers[1], dtype))
    if name == "HardSigmoid":
        alpha, beta = numbers if len(numbers) == 2 else (0.2, 0.5)
        line = relax.op.add(relax.op.multiply(y, scalar(alpha, dtype)), scalar(beta, dtype))
        return relax.op.minimum(relax.op.maximum(line, scalar(0.0, dtype)), scalar(1.0, dtype))
    raise Unsupported(f"the activation {name} with parameters {numbers}")


def _fused_conv(node: Node) -> relax.Expr:
    y = with_bias(node, convolved(node, node.tensor(0), node.tensor(1)), node.optional(2))
    if node.has(3):
        y = node.emit(relax.op.add(y, node.tensor(3)))
    if "activation" not in node.attributes:
        return y
    return _activated(
        node, y, node.attributes["activation"], list(node.attributes.get("activation_params", []))
    )


def _fused_gemm(node: Node) -> relax.Expr:
    given, dtype = node.attributes, node.dtype(0)
    a = _transposed(node, node.tensor(0), given["transA"], False)
    b = _transposed(node, node.tensor(1), given["transB"], False)
    y = node.emit(relax.op.matmul(a, b))
    if given["alpha"] != 1.0:
        y = node.emit(relax.op.multiply(y, scalar(given["alpha"], dtype)))
    if node.has(2):
        bias = node.tensor(2)
        bias = bias if given["beta"] == 1.0 else relax.op.multiply(bias, scalar(given["beta"], dtype))
        y = node.emit(relax.op.add(y, bias))
    numbers = [given[n] for n in ("activation_alpha", "activation_beta") if n in given]
    return _activated(node, y, given["activation"], numbers) if "activation" in given else y


def _wide(node: Node, x: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.astype(x, "float32")) if dtype_of(x) in ("float16", "bfloat16") else x


def _gelu(tanh: bool) -> Any:
    def convert(node: Node) -> relax.Expr:
        x = _wide(node, node.tensor(0))
        if node.has(1):
            x = node.emit(relax.op.add(x, _wide(node, node.tensor(1))))
        dtype = dtype_of(x)
        y = node.emit((gelu_tanh if tanh else gelu)(x, dtype))
        return y if dtype == node.dtype(0) else relax.op.astype(y, node.dtype(0))

    return convert


def _quick_gelu(node: Node) -> relax.Expr:
    x = _wide(node, node.tensor(0))
    dtype = dtype_of(x)
    inner = relax.op.multiply(x, scalar(node.attributes["alpha"], dtype))
    y = node.emit(relax.op.multiply(x, relax.op.sigmoid(inner)))
    return y if dtype == node.dtype(0) else relax.op.astype(y, node.dtype(0))


def _skip_sum(node: Node, bias: int) -> relax.Expr:
    """Return input plus skip plus bias. A skip of fewer batches is broadcast."""
    total = relax.op.add(node.tensor(0), node.tensor(1))
    if node.has(bias):
        total = relax.op.add(total, node.tensor(bias))
    return node.emit(total)


def _skip_layer_norm(node: Node) -> tuple[relax.Expr, ...]:
    """Convert input, skip, gamma, beta and bias. The fourth result is the sum that is normalized."""
    total = _skip_sum(node, 4)
    y, mean, inverse = layer_norm(
        node, total, node.tensor(2), node.optional(3), -1, node.attributes["epsilon"]
    )
    return y, mean, inverse, total


def _skip_simplified(node: Node) -> tuple[relax.Expr | None, ...]:
    total = _skip_sum(node, 3)
    wide = "float32" if node.dtype(0) in ("float16", "bfloat16") else node.dtype(0)
    return rms_norm(node, total, node.tensor(2), -1, node.attributes["epsilon"], wide), None, None, total


def _simplified(node: Node) -> tuple[relax.Expr, ...]:
    wide = "float32" if node.dtype(0) in ("float16", "bfloat16") else node.dtype(0)
    return (
        rms_norm(
            node, node.tensor(0), node.tensor(1), node.attributes["axis"], node.attributes["epsilon"], wide
        ),
    )


def _embed_layer_norm(node: Node) -> tuple[relax.Expr | None, ...]:
    """Convert sums of embeddings of words, positions and segments, which are normalized."""
    words = node.emit(relax.op.take(node.tensor(2), node.tensor(0), axis=0))
    length = node.shape(0)[1]
    if node.has(8):
        places = node.emit(relax.op.take(node.tensor(3), node.tensor(8), axis=0))
    else:
        places = node.emit(relax.op.take(node.tensor(3), relax.op.arange(0, length, 1, "int64"), axis=0))
    total = node.emit(relax.op.add(words, places))
    if node.has(1):
        total = node.emit(relax.op.add(total, relax.op.take(node.tensor(4), node.tensor(1), axis=0)))
    y, _, _ = layer_norm(node, total, node.tensor(5), node.tensor(6), -1, node.attributes["epsilon"])
    counts = None
    if len(node.outputs) > 1 and node.outputs[1]:
        if node.has(7):
            counts = node.emit(relax.op.sum(node.tensor(7), [1]))
        else:
            counts = node.emit(
                relax.op.full(relax.ShapeExpr([node.shape(0)[0]]), scalar(0, "int32"), "int32")
            )
    return y, counts, total


_TRANSPOSES = {"transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0, "alpha": 1.0}
_GEMM = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0}
_CONV = dict.fromkeys(("dilations", "group", "kernel_shape", "pads", "strides", "activation_params"), ANY)
_AUTO = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
_ANY_OF = {
    "activation": _ACTIVATIONS,
    "activation_alpha": ANY,
    "activation_beta": ANY,
    "activation_gamma": ANY,
}
_EPSILON = {"epsilon": ANY}

CONVERSIONS = {
    (DOMAIN, "FusedMatMul"): Conversion(_fused_matmul, dict.fromkeys(_TRANSPOSES, ANY), defaults=_TRANSPOSES),
    (DOMAIN, "TransposeMatMul"): Conversion(
        _fused_matmul, dict.fromkeys(_TRANSPOSES, ANY), defaults=_TRANSPOSES
    ),
    (DOMAIN, "FusedConv"): Conversion(_fused_conv, {**_CONV, "auto_pad": _AUTO, "activation": _ACTIVATIONS}),
    (DOMAIN, "FusedGemm"): Conversion(_fused_gemm, {**dict.fromkeys(_GEMM, ANY), **_ANY_OF}, defaults=_GEMM),
    (DOMAIN, "Gelu"): Conversion(_gelu(False)),
    (DOMAIN, "BiasGelu"): Conversion(_gelu(False)),
    (DOMAIN, "FastGelu"): Conversion(_gelu(True)),
    (DOMAIN, "QuickGelu"): Conversion(_quick_gelu, {"alpha": ANY}, defaults={"alpha": 1.702}),
    (DOMAIN, "SkipLayerNormalization"): Conversion(_skip_layer_norm, _EPSILON, defaults={"epsilon": 1e-12}),
    (DOMAIN, "SkipSimplifiedLayerNormalization"): Conversion(
        _skip_simplified, _EPSILON, defaults={"epsilon": 1e-12}
    ),
    ("", "SimplifiedLayerNormalization"): Conversion(
        _simplified,
        {"axis": ANY, "epsilon": ANY, "stash_type": (1,)},
        defaults={"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    ),
    (DOMAIN, "EmbedLayerNormalization"): Conversion(
        _embed_layer_norm,
        {"epsilon": ANY, "mask_index_type": (0,)},
        defaults={"epsilon": 1e-12, "mask_index_type": 0},
    ),
}
