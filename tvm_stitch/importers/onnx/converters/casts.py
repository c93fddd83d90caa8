# SPDX-License-Identifier: Apache-2.0
"""Casts between the types that TVM computes with."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from .node import ANY, Conversion, Node, Unsupported, dtype_of, scalar

_KNOWN = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()
)


def _cast(node: Node) -> relax.Expr:
    return _to(node, onnx_frontend.get_type(node.attributes["to"]))


def _cast_like(node: Node) -> relax.Expr:
    name = node.proto.input[1]
    return _to(node, node.importer.narrow(name) or dtype_of(node.tensor(1)))


def _to(node: Node, to: str) -> relax.Expr:
    x, dtype = node.tensor(0), node.dtype(0)
    for kind in (to, dtype):
        if kind not in _KNOWN:
            raise Unsupported(f"it casts {dtype} to {to}; TVM computes with {kind} in no operator")
    if node.importer.narrow(node.proto.input[0]) and to == dtype:
        raise Unsupported(f"it casts a constant of {node.importer.narrow(node.proto.input[0])}")
    if to == dtype:
        return relax.op.reshape(x, relax.ShapeExpr(node.shape(0)))
    if to == "bool":
        return relax.op.not_equal(x, scalar(0, dtype))
    if dtype == "bool" and to in ("float16", "bfloat16"):
        x = node.emit(relax.op.astype(x, "float32"))
    if dtype.startswith(("float", "bfloat")) and to.startswith(("int", "uint")):
        result: Any = onnx_frontend.Cast._impl_v13(node.bb, [x], {"to": to}, [{}, {}])
        return result
    return relax.op.astype(x, to)


_ROUNDED = {"saturate": (1,), "round_mode": ("up",)}

CONVERSIONS = {
    ("", "Cast"): Conversion(_cast, {"to": ANY, **_ROUNDED}, since=6),
    ("", "CastLike"): Conversion(_cast_like, _ROUNDED),
}
