# SPDX-License-Identifier: Apache-2.0
"""Quantization in all granularities, and products of quantized tensors."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto
from tvm import relax

from ..node import ANY, Conversion, Node, Unsupported, dtype_of, positive, scalar, shape_of
from .convolution import one, requantized

RANGES = {
    "int2": (-2, 1),
    "uint2": (0, 3),
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
}
"""Least and greatest value of the types of quantized tensors."""


def logical_type(node: Node, position: int) -> str:
    """Return the type of an input, ``int4`` for a constant of such integers, which are bytes in TVM."""
    return node.importer.narrow(node.proto.input[position]) or node.dtype(position)


def spread(node: Node, value: relax.Expr, like: list[Any], axis: int, block: int) -> relax.Expr:
    """Return scales or zero points in a shape that broadcasts to the data: of a tensor, an axis or blocks."""
    dims = shape_of(value)
    rank = len(like)
    if not dims or dims == [1] and rank != 1:
        return value if not dims else node.emit(relax.op.reshape(value, relax.ShapeExpr([])))
    axis = positive(axis, rank)
    if block:
        if len(dims) != rank:
            raise Unsupported(
                f"blocks of {block} need scales of {rank} dimensions, and they have {len(dims)}"
            )
        whole = node.emit(relax.op.repeat(value, block, axis))
        if shape_of(whole)[axis] == like[axis]:
            return whole
        return node.emit(relax.op.strided_slice(whole, [axis], [0], [like[axis]]))
    if len(dims) != 1:
        raise Unsupported(
            f"its scale has {len(dims)} dimensions without block_size; one value an axis is taken"
        )
    if rank == 1:
        return value
    return node.emit(relax.op.reshape(value, [dims[0] if i == axis else 1 for i in range(rank)]))


def _quantize(node: Node) -> relax.Expr:
    x, dims, given = node.tensor(0), node.shape(0), node.attributes
    kind = logical_type(node, 2) if node.has(2) else "uint8"
    if not node.has(2) and given.get("output_dtype", 0):
        kind = TensorProto.DataType.Name(given["output_dtype"]).lower()
    if kind not in RANGES:
        raise Unsupported(f"it quantizes to {kind}; integers of 2 to 16 bits are taken")
    if given.get("precision", 0) not in (0, TensorProto.FLOAT):
        raise Unsupported(f"it has the precision {given['precision']}; float (1) is taken")
    if any(kind == n for n in ("int2", "uint2", "int4", "uint4")) and not _stays_inside(node):
        raise Unsupported(f"its result of {kind} is an output of the model; TVM has bytes only")
    axis, block = given.get("axis", 1), given.get("block_size", 0)
    axis = axis if len(dims) > 1 else 0
    if kind in ("int8", "uint8") and not block and node.dtype(0) == node.dtype(1) == "float32" and dims:
        zero = node.tensor(2) if node.has(2) else scalar(0, kind)
        return relax.op.quantize(
            x, _scalar(node, node.tensor(1)), _scalar(node, zero), axis=axis, out_dtype=kind
        )
    scale = spread(node, node.tensor(1), dims, axis, block)
    wide = "float32"
    quotient = relax.op.divide(_to(node, x, wide), _to(node, scale, wide))
    y = node.emit(relax.op.round(quotient))
    if node.has(2):
        zero = spread(node, node.tensor(2), dims, axis, block)
        y = node.emit(relax.op.add(y, _to(node, zero, wide)))
    low, high = RANGES[kind]
    y = relax.op.minimum(relax.op.maximum(y, scalar(float(low), wide)), scalar(float(high), wide))
    return relax.op.astype(
        node.emit(y), {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}.get(kind, kind)
    )


def _scalar(node: Node, value: relax.Expr) -> relax.Expr:
    """Return a tensor of one element as a scalar, and other tensors unchanged."""
    return node.emit(relax.op.reshape(value, relax.ShapeExpr([]))) if shape_of(value) == [1] else value


def _stays_inside(node: Node) -> bool:
    return not node.importer.is_output(node.outputs[0])


def _to(node: Node, value: relax.Expr, dtype: str) -> relax.Expr:
    return value if dtype_of(value) == dtype else node.emit(relax.op.astype(value, dtype))


def _dequantize(node: Node) -> relax.Expr:
    x, dims, given = node.tensor(0), node.shape(0), node.attributes
    axis, block = given.get("axis", 1), given.get("block_size", 0)
    axis = axis if len(dims) > 1 else 0
    kind = (
        node.dtype(1)
        if not given.get("output_dtype", 0)
        else TensorProto.DataType.Name(given["output_dtype"]).lower()
    )
    kind = {"float": "float32", "double": "float64"}.get(kind, kind)
    if node.dtype(0).startswith("float"):
        raise Unsupported(f"it reads {node.dtype(0)}; integers are taken")
    if (
        node.dtype(0) in ("int8", "uint8", "int32")
        and not block
        and kind == node.dtype(1) == "float32"
        and dims
    ):
        zero = node.tensor(2) if node.has(2) else scalar(0, node.dtype(0))
        return relax.op.dequantize(
            x, _scalar(node, node.tensor(1)), _scalar(node, zero), axis=axis, out_dtype=kind
        )
    wide = "float32"
    scale = spread(node, node.tensor(1), dims, axis, block)
    if node.has(2):
        zero = spread(node, node.tensor(2), dims, axis, block)
        x = node.emit(relax.op.subtract(_to(node, x, "int32"), _to(node, zero, "int32")))
    y = node.emit(relax.op.multiply(_to(node, x, wide), _to(node, scale, wide)))
    return y if kind == wide else relax.op.astype(y, kind)


def quantized_dynamically(node: Node, x: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Return a tensor as bytes, its scale and zero point, from its least and greatest element and zero."""
    zero, most = scalar(0.0, "float32"), scalar(255.0, "float32")
    high = node.emit(relax.op.maximum(relax.op.max(x), zero))
    low = node.emit(relax.op.minimum(relax.op.min(x), zero))
    scale = node.emit(relax.op.divide(relax.op.subtract(high, low), most))
    scale = node.emit(relax.op.where(relax.op.equal(scale, zero), scalar(1.0, "float32"), scale))
    point = relax.op.round(relax.op.divide(relax.op.negative(low), scale))
    point = node.emit(relax.op.minimum(relax.op.maximum(point, zero), most))
    point = node.emit(relax.op.astype(point, "uint8"))
    return node.emit(relax.op.quantize(x, scale, point, axis=0, out_dtype="uint8")), scale, point


def differences(node: Node, position: int, zero: int, row: bool) -> relax.Expr:
    """Return an input minus its zero point in int32. A vector of zero points is of rows or columns."""
    x = _to(node, node.tensor(position), "int32")
    if not node.has(zero):
        return x
    point = _to(node, node.tensor(zero), "int32")
    if len(shape_of(point)) == 1 and shape_of(point) != [1]:
        point = node.emit(relax.op.reshape(point, [-1, 1] if row else [1, -1]))
    elif shape_of(point) == [1]:
        point = node.emit(relax.op.reshape(point, relax.ShapeExpr([])))
    return node.emit(relax.op.subtract(x, point))


def _matmul_integer(node: Node) -> relax.Expr:
    return relax.op.matmul(differences(node, 0, 2, True), differences(node, 1, 3, False), out_dtype="int32")


def _qlinear_matmul(node: Node) -> relax.Expr:
    """Convert a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point."""
    a, b = differences(node, 0, 2, True), differences(node, 3, 5, False)
    sums = node.emit(relax.op.matmul(a, b, out_dtype="int32"))
    left, right = _to(node, node.tensor(1), "float32"), _to(node, node.tensor(4), "float32")
    if len(shape_of(left)) == 1 and shape_of(left) != [1]:
        left = node.emit(relax.op.reshape(left, [-1, 1]))
    factor = node.emit(relax.op.divide(relax.op.multiply(left, right), _to(node, one(node, 6), "float32")))
    if shape_of(factor) == [1]:
        factor = node.emit(relax.op.reshape(factor, relax.ShapeExpr([])))
    return requantized(node, sums, factor, one(node, 7), node.dtype(7))


def _dynamic_quantize(node: Node) -> tuple[relax.Expr, ...]:
    return quantized_dynamically(node, node.tensor(0))


_AXIS = {"axis": ANY, "block_size": ANY, "output_dtype": ANY, "precision": ANY, "saturate": ANY}

CONVERSIONS = {
    ("", "QuantizeLinear"): Conversion(_quantize, _AXIS),
    ("", "DequantizeLinear"): Conversion(
        _dequantize, dict.fromkeys(("axis", "block_size", "output_dtype"), ANY)
    ),
    ("", "DynamicQuantizeLinear"): Conversion(_dynamic_quantize),
    ("", "MatMulInteger"): Conversion(_matmul_integer),
    ("", "QLinearMatMul"): Conversion(_qlinear_matmul),
}
