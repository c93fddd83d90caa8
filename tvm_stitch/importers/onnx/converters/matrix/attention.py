# SPDX-License-Identifier: Apache-2.0
"""Attention and RotaryEmbedding of ONNX's own domain (operator sets 23 and newer)."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import relax

from ..node import ANY, Conversion, Node, Unsupported, dtype_of, scalar, shape_of
from .attending import Scores, attend, both, merge_heads, positions, rotated, split_heads


def _attention(node: Node) -> tuple[relax.Expr | None, ...]:
    """Convert Attention: grouped heads, caches, masks, softcap and all four kinds of scores."""
    given, dtype = node.attributes, node.dtype(0)
    flat = len(node.shape(0)) == 3
    tensors = [node.tensor(i) for i in range(3)]
    if flat:
        heads = [given.get("q_num_heads", 0), *[given.get("kv_num_heads", 0)] * 2]
        tensors = [split_heads(node, t, h) for t, h in zip(tensors, heads)]
    q, k, v = tensors
    past: Any = 0
    if node.has(4):
        past = shape_of(node.tensor(4))[2]
        k = node.emit(relax.op.concat([node.tensor(4), k], axis=2))
        v = node.emit(relax.op.concat([node.tensor(5), v], axis=2))
    queries, keys = shape_of(q)[2], shape_of(k)[2]
    bias, allowed = _mask(node, keys)
    guarded = bias is not None or allowed is not None
    offset: Any = past
    lengths = None
    if node.has(6):
        lengths = node.emit(relax.op.reshape(node.tensor(6), relax.ShapeExpr([shape_of(q)[0], 1, 1, 1])))
        offset = node.emit(relax.op.subtract(lengths, _extent(node, queries)))
        guarded = True
    left, right = given.get("left_window_size", -1), given.get("right_window_size", -1)
    if given["is_causal"] or left >= 0 or right >= 0:
        row, column = positions(node, queries, offset, 1), positions(node, keys, 0, 0)
        ahead = node.emit(relax.op.subtract(row, column))
        if given["is_causal"]:
            allowed = both(node, allowed, node.emit(relax.op.greater_equal(ahead, scalar(0, "int64"))))
        if left >= 0:
            allowed = both(node, allowed, node.emit(relax.op.less_equal(ahead, scalar(left, "int64"))))
        if right >= 0:
            allowed = both(node, allowed, node.emit(relax.op.greater_equal(ahead, scalar(-right, "int64"))))
        guarded = guarded or left >= 0 or right >= 0
    if lengths is not None:
        allowed = both(node, allowed, node.emit(relax.op.less(positions(node, keys, 0, 0), lengths)))
    precision = given.get("softmax_precision")
    wide = str(np.dtype(helper.tensor_dtype_to_np_dtype(precision))) if precision else None
    wide = wide or ("float32" if dtype in ("float16", "bfloat16") else dtype)
    how = Scores(given.get("scale"), given["softcap"], bias, allowed, guarded, wide)
    results = attend(node, q, k, v, how)
    kinds = (results.products, results.capped, results.biased, results.probabilities)
    output = merge_heads(node, results.output) if flat else results.output
    return output, k, v, kinds[given["qk_matmul_output_mode"]]


def _extent(node: Node, extent: Any) -> relax.Expr:
    if isinstance(extent, int):
        return scalar(extent, "int64")
    return node.emit(relax.op.shape_to_tensor(relax.ShapeExpr([extent])))


def _mask(node: Node, keys: Any) -> tuple[relax.Expr | None, relax.Expr | None]:
    """Return the mask as a bias or as allowed keys. A mask of fewer keys leaves out the last ones."""
    if not node.has(3):
        return None, None
    mask = node.tensor(3)
    dims = shape_of(mask)
    boolean = dtype_of(mask) == "bool"
    if dims[-1] != keys:
        if not isinstance(dims[-1], int) or not isinstance(keys, int):
            raise Unsupported(f"a mask of {dims[-1]} keys for {keys} keys; fix symbolic dimensions")
        if dims[-1] > keys:
            mask = node.emit(relax.op.strided_slice(mask, [len(dims) - 1], [0], [keys]))
        else:
            fill = (
                np.zeros((1,) * len(dims), "bool")
                if boolean
                else np.full((1,) * len(dims), -np.inf, "float32")
            )
            rest = relax.const(fill) if boolean else relax.const(fill.astype(_numpy(dtype_of(mask))))
            rest = node.emit(relax.op.broadcast_to(rest, relax.ShapeExpr([*dims[:-1], keys - dims[-1]])))
            mask = node.emit(relax.op.concat([mask, rest], axis=len(dims) - 1))
    if boolean:
        return None, mask
    if dtype_of(mask) != node.dtype(0):
        mask = node.emit(relax.op.astype(mask, node.dtype(0)))
    return mask, None


def _numpy(dtype: str) -> Any:
    if dtype != "bfloat16":
        return np.dtype(dtype)
    import ml_dtypes

    return ml_dtypes.bfloat16


def _rotary_embedding(node: Node) -> relax.Expr:
    given, x = node.attributes, node.tensor(0)
    flat = len(node.shape(0)) == 3
    dims = node.shape(0)
    if flat:
        heads = given.get("num_heads", 0)
        if not heads or not isinstance(dims[2], int) or dims[2] % heads:
            raise Unsupported(f"an input {dims} of three dimensions needs num_heads, which is {heads}")
        x = node.emit(relax.op.reshape(x, relax.ShapeExpr([dims[0], dims[1], heads, dims[2] // heads])))
    else:
        x = node.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    cos, sin = node.tensor(1), node.tensor(2)
    if node.has(3):
        cos, sin = (node.emit(relax.op.take(t, node.tensor(3), axis=0)) for t in (cos, sin))
    y = rotated(node, x, cos, sin, bool(given["interleaved"]), given["rotary_embedding_dim"])
    if flat:
        return relax.op.reshape(y, relax.ShapeExpr(dims))
    return relax.op.permute_dims(y, [0, 2, 1, 3])


_NAMES = "is_causal kv_num_heads q_num_heads scale softcap softmax_precision left_window_size right_window_size".split()

CONVERSIONS = {
    ("", "Attention"): Conversion(
        _attention, {**dict.fromkeys(_NAMES, ANY), "qk_matmul_output_mode": (0, 1, 2, 3)}, since=23
    ),
    ("", "RotaryEmbedding"): Conversion(
        _rotary_embedding,
        dict.fromkeys(("interleaved", "num_heads", "rotary_embedding_dim"), ANY),
        since=23,
    ),
}
