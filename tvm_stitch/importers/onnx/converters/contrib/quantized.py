# SPDX-License-Identifier: Apache-2.0
"""Quantized operators of ONNX Runtime: products with scales, 4-bit weights, and element-wise operators on bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..matrix.convolution import one
from ..matrix.quantized import CONVERSIONS as PLAIN
from ..matrix.quantized import RANGES, differences, quantized_dynamically
from ..node import ANY, Conversion, Node, dtype_of, scalar, shape_of

DOMAIN = "com.microsoft"


def _scaled(node: Node, sums: relax.Expr, scale: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """Return int32 sums times a scale of the tensor or of each column, plus a bias."""
    if shape_of(scale) == [1]:
        scale = node.emit(relax.op.reshape(scale, relax.ShapeExpr([])))
    y = node.emit(relax.op.multiply(relax.op.astype(sums, "float32"), scale))
    return y if bias is None else relax.op.add(y, bias)


def _dynamic_quantize_matmul(node: Node) -> relax.Expr:
    """Convert A, B, b_scale, b_zero_point, bias: A is quantized by its own extremes."""
    a, scale, zero = quantized_dynamically(node, node.tensor(0))
    a = node.emit(relax.op.subtract(relax.op.astype(a, "int32"), relax.op.astype(zero, "int32")))
    sums = node.emit(relax.op.matmul(a, differences(node, 1, 3, False), out_dtype="int32"))
    return _scaled(node, sums, node.emit(relax.op.multiply(scale, node.tensor(2))), node.optional(4))


def _matmul_integer_to_float(node: Node) -> relax.Expr:
    """Convert A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias."""
    a, b = differences(node, 0, 4, True), differences(node, 1, 5, False)
    sums = node.emit(relax.op.matmul(a, b, out_dtype="int32"))
    scale = node.emit(relax.op.multiply(one(node, 2), node.tensor(3)))
    return _scaled(node, sums, scale, node.optional(6))


def _unpacked(node: Node, bytes_: relax.Expr, bits: int) -> relax.Expr:
    """Return integers of 4 bits from bytes along the last dimension, the lower half first."""
    if bits == 8:
        return bytes_
    low = relax.op.bitwise_and(bytes_, scalar(15, "uint8"))
    high = relax.op.right_shift(bytes_, scalar(4, "uint8"))
    both = node.emit(relax.op.stack([node.emit(low), node.emit(high)], axis=-1))
    dims = shape_of(bytes_)
    return node.emit(relax.op.reshape(both, relax.ShapeExpr([*dims[:-1], dims[-1] * 2])))


def _matmul_n_bits(node: Node) -> relax.Expr:
    """Convert a matmul with weights ``[N, blocks, block * bits / 8]`` of bytes, scaled by blocks of K."""
    given, dtype = node.attributes, node.dtype(0)
    k, n, bits, block = (int(given[name]) for name in ("K", "N", "bits", "block_size"))
    blocks = -(-k // block)
    if node.has(4):
        return _matmul_of_groups(node, k, n, bits)
    weights = _unpacked(node, node.tensor(1), bits)
    weights = node.emit(relax.op.reshape(weights, relax.ShapeExpr([n, blocks, block])))
    scales = node.emit(relax.op.reshape(node.tensor(2), relax.ShapeExpr([n, blocks, 1])))
    zero = _zero_points(node, n, blocks, bits)
    if zero is None:
        zero = scalar(float(1 << (bits - 1)), dtype)
    else:
        zero = node.emit(relax.op.reshape(zero, relax.ShapeExpr([n, blocks, 1])))
    real = node.emit(relax.op.multiply(relax.op.subtract(relax.op.astype(weights, dtype), zero), scales))
    real = node.emit(relax.op.reshape(real, relax.ShapeExpr([n, blocks * block])))
    return _matmul_and_bias(node, real, k)


def _zero_points(node: Node, n: int, blocks: int, bits: int) -> relax.Expr | None:
    """Return zero points ``[N, blocks]`` in the type of the activations, or None if the node has none."""
    if not node.has(3):
        return None
    if node.dtype(3) != "uint8":
        return node.emit(relax.op.reshape(node.tensor(3), relax.ShapeExpr([n, blocks])))
    packed = node.emit(relax.op.reshape(node.tensor(3), relax.ShapeExpr([n, -(-blocks * bits // 8)])))
    points = _unpacked(node, packed, bits)
    if shape_of(points)[1] != blocks:
        points = node.emit(relax.op.strided_slice(points, [1], [0], [blocks]))
    return node.emit(relax.op.astype(points, node.dtype(0)))


def _matmul_of_groups(node: Node, k: int, n: int, bits: int) -> relax.Expr:
    """Convert a matmul whose ``g_idx`` gives the block of each row of the weight, as GPTQ orders rows."""
    given, dtype = node.attributes, node.dtype(0)
    blocks = -(-k // int(given["block_size"]))
    groups = node.tensor(4)
    if shape_of(groups)[0] != k:
        groups = node.emit(relax.op.strided_slice(groups, [0], [0], [k]))

    def of_rows(values: relax.Expr) -> relax.Expr:
        return node.emit(relax.op.take(values, groups, axis=1))

    weights = _unpacked(node, node.tensor(1), bits)
    weights = node.emit(relax.op.reshape(weights, relax.ShapeExpr([n, blocks * int(given["block_size"])])))
    if shape_of(weights)[1] != k:
        weights = node.emit(relax.op.strided_slice(weights, [1], [0], [k]))
    scales = of_rows(node.emit(relax.op.reshape(node.tensor(2), relax.ShapeExpr([n, blocks]))))
    points = _zero_points(node, n, blocks, bits)
    zero = scalar(float(1 << (bits - 1)), dtype) if points is None else of_rows(points)
    real = node.emit(relax.op.multiply(relax.op.subtract(relax.op.astype(weights, dtype), zero), scales))
    return _matmul_and_bias(node, real, k)


def _matmul_and_bias(node: Node, real: relax.Expr, k: int) -> relax.Expr:
    """Return the activations times the first K columns of a weight ``[N, K or more]``, plus the bias."""
    if shape_of(real)[1] != k:
        real = node.emit(relax.op.strided_slice(real, [1], [0], [k]))
    y = node.emit(relax.op.matmul(node.tensor(0), node.emit(relax.op.permute_dims(real, [1, 0]))))
    return relax.op.add(y, node.tensor(5)) if node.has(5) else y


def _real(node: Node, position: int) -> relax.Expr:
    """Return a tensor of bytes, its scale and zero point (three inputs) as float32."""
    x = relax.op.astype(node.tensor(position), "int32")
    if node.has(position + 2):
        x = relax.op.subtract(x, relax.op.astype(one(node, position + 2), "int32"))
    return node.emit(relax.op.multiply(relax.op.astype(x, "float32"), one(node, position + 1)))


def _bytes(node: Node, y: relax.Expr, scale: int, kind: str) -> relax.Expr:
    """Return float32 as bytes, with the scale and zero point of two inputs."""
    low, high = RANGES[kind]
    q = relax.op.round(relax.op.divide(y, one(node, scale)))
    if node.has(scale + 1):
        q = relax.op.add(q, relax.op.astype(one(node, scale + 1), "float32"))
    q = relax.op.minimum(relax.op.maximum(q, scalar(float(low), "float32")), scalar(float(high), "float32"))
    return relax.op.astype(node.emit(q), kind)


def _binary(function: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Callable[[Node], Any]:
    def convert(node: Node) -> relax.Expr:
        return _bytes(node, node.emit(function(_real(node, 0), _real(node, 3))), 6, node.dtype(0))

    return convert


def _unary(function: Callable[[Node, relax.Expr], relax.Expr]) -> Callable[[Node], Any]:
    def convert(node: Node) -> relax.Expr:
        return _bytes(node, node.emit(function(node, _real(node, 0))), 3, node.dtype(0))

    return convert


def _global_average(node: Node, x: relax.Expr) -> relax.Expr:
    rank = len(shape_of(x))
    axes = list(range(1, rank - 1)) if node.attributes["channels_last"] else list(range(2, rank))
    return relax.op.mean(x, axes, keepdims=True)


def _concat(node: Node) -> relax.Expr:
    """Convert the scale and zero point of the result, followed by tensors with theirs."""
    parts = [_real(node, i) for i in range(2, len(node.inputs), 3)]
    joined = node.emit(relax.op.concat(parts, axis=node.attributes["axis"]))
    return _bytes(node, joined, 0, dtype_of(node.tensor(2)))


_NBITS = {
    "K": ANY,
    "N": ANY,
    "bits": (4, 8),
    "block_size": ANY,
    "accuracy_level": ANY,
    "weight_prepacked": (0,),
}

CONVERSIONS = {
    (DOMAIN, "QuantizeLinear"): Conversion(
        PLAIN["", "QuantizeLinear"].convert, {"axis": ANY}, defaults={"axis": 1}
    ),
    (DOMAIN, "DequantizeLinear"): Conversion(
        PLAIN["", "DequantizeLinear"].convert, {"axis": ANY}, defaults={"axis": 1}
    ),
    (DOMAIN, "DynamicQuantizeMatMul"): Conversion(_dynamic_quantize_matmul),
    (DOMAIN, "MatMulIntegerToFloat"): Conversion(_matmul_integer_to_float),
    (DOMAIN, "MatMulNBits"): Conversion(_matmul_n_bits, _NBITS, defaults={"bits": 4, "accuracy_level": 0}),
    (DOMAIN, "QLinearAdd"): Conversion(_binary(relax.op.add)),
    (DOMAIN, "QLinearMul"): Conversion(_binary(relax.op.multiply)),
    (DOMAIN, "QLinearSigmoid"): Conversion(_unary(lambda _, x: relax.op.sigmoid(x))),
    (DOMAIN, "QLinearLeakyRelu"): Conversion(
        _unary(lambda n, x: relax.op.nn.leakyrelu(x, n.attributes["alpha"])),
        {"alpha": ANY},
        defaults={"alpha": 0.01},
    ),
    (DOMAIN, "QLinearGlobalAveragePool"): Conversion(
        _unary(_global_average), {"channels_last": ANY}, defaults={"channels_last": 0}
    ),
    (DOMAIN, "QLinearConcat"): Conversion(_concat, {"axis": ANY}),
}
