# SPDX-License-Identifier: Apache-2.0
"""Attention as matmuls and a softmax, and rotary embeddings: what several operators share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..node import Node, Unsupported, dtype_of, scalar, shape_of


@dataclass(frozen=True)
class Scores:
    """The steps from scores to probabilities.

    Attributes:
        scale: factor of the products of queries and keys, or None for one over the root of the head's size.
        softcap: bound of scores by a hyperbolic tangent, or 0 for none.
        bias: tensor that is added to the scores, or None.
        allowed: tensor of booleans with the keys that each query attends to, or None for all.
        guarded: whether a row may have no key, so that its result has to be zero.
        precision: type in which the softmax is computed.
    """

    scale: float | None = None
    softcap: float = 0.0
    bias: relax.Expr | None = None
    allowed: relax.Expr | None = None
    guarded: bool = False
    precision: str = "float32"


@dataclass(frozen=True)
class Attended:
    """Results of attention: products, products with softcap, products with bias, probabilities, and the output."""

    products: relax.Expr
    capped: relax.Expr
    biased: relax.Expr
    probabilities: relax.Expr
    output: relax.Expr


def attend(node: Node, q: relax.Expr, k: relax.Expr, v: relax.Expr, how: Scores) -> Attended:
    """Return attention of tensors ``[batch, heads, length, size]``. Heads of keys are repeated for those of queries."""
    emit, dtype = node.emit, dtype_of(q)
    heads, kv_heads, size = shape_of(q)[1], shape_of(k)[1], shape_of(q)[3]
    if heads != kv_heads:
        if not isinstance(heads, int) or not isinstance(kv_heads, int) or heads % kv_heads:
            raise Unsupported(f"{heads} heads of queries are no multiple of {kv_heads} heads of keys")
        k, v = (emit(relax.op.repeat(t, heads // kv_heads, 1)) for t in (k, v))
    scale = how.scale
    if scale is None:
        if not isinstance(size, int):
            raise Unsupported("the size of a head is symbolic; fix it, or give a scale")
        scale = 1 / math.sqrt(size)
    products = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
    products = emit(relax.op.multiply(products, scalar(scale, dtype)))
    capped = products
    if how.softcap:
        bounded = relax.op.tanh(relax.op.divide(products, scalar(how.softcap, dtype)))
        capped = emit(relax.op.multiply(bounded, scalar(how.softcap, dtype)))
    biased = capped if how.bias is None else emit(relax.op.add(capped, how.bias))
    low = scalar(-np.inf, dtype)
    if how.allowed is not None:
        biased = emit(relax.op.where(how.allowed, biased, low))
    wide = how.precision
    scores = biased if wide == dtype else emit(relax.op.astype(biased, wide))
    empty = _rows_without_keys(node, how, dtype) if how.guarded else None
    if empty is not None:
        scores = emit(relax.op.where(empty, scalar(0.0, wide), scores))
    chances = emit(relax.op.nn.softmax(scores, axis=-1))
    if empty is not None:
        chances = emit(relax.op.where(empty, scalar(0.0, wide), chances))
    chances = chances if wide == dtype else emit(relax.op.astype(chances, dtype))
    return Attended(products, capped, biased, chances, emit(relax.op.matmul(chances, v)))


def _rows_without_keys(node: Node, how: Scores, dtype: str) -> relax.Expr | None:
    """Return which rows of the masks have no key, with the last dimension kept."""
    low = scalar(-np.inf, dtype)
    mask = how.bias
    if how.allowed is not None:
        zero = scalar(0.0, dtype) if mask is None else mask
        mask = node.emit(relax.op.where(how.allowed, zero, low))
    if mask is None:
        return None
    return node.emit(relax.op.equal(node.emit(relax.op.max(mask, axis=[-1], keepdims=True)), low))


def positions(node: Node, length: Any, first: Any, axis: int) -> relax.Expr:
    """Return ``first, first + 1, ...`` of int64 along the last but ``axis`` dimension of a matrix."""
    steps = node.emit(relax.op.arange(0, length, 1, "int64"))
    shape = [1, length] if axis == 0 else [length, 1]
    line = node.emit(relax.op.reshape(steps, relax.ShapeExpr(shape)))
    if isinstance(first, int):
        return line if first == 0 else node.emit(relax.op.add(line, scalar(first, "int64")))
    start = first
    if not isinstance(first, relax.Expr) or not isinstance(first.ty, relax.TensorType):
        start = node.emit(relax.op.shape_to_tensor(relax.ShapeExpr([first])))
    return node.emit(relax.op.add(line, start))


def both(node: Node, a: relax.Expr | None, b: relax.Expr) -> relax.Expr:
    """Return the conjunction of two masks of booleans, of which the first may be None."""
    return b if a is None else node.emit(relax.op.logical_and(a, b))


def split_heads(node: Node, x: relax.Expr, heads: int) -> relax.Expr:
    """Return ``[batch, length, heads * size]`` as ``[batch, heads, length, size]``."""
    batch, length, hidden = shape_of(x)
    if not isinstance(hidden, int) or not heads or hidden % heads:
        raise Unsupported(f"a hidden size {hidden} is no multiple of {heads} heads")
    wide = node.emit(relax.op.reshape(x, relax.ShapeExpr([batch, length, heads, hidden // heads])))
    return node.emit(relax.op.permute_dims(wide, [0, 2, 1, 3]))


def merge_heads(node: Node, x: relax.Expr) -> relax.Expr:
    """Return ``[batch, heads, length, size]`` as ``[batch, length, heads * size]``."""
    batch, heads, length, size = shape_of(x)
    turned = node.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    return node.emit(relax.op.reshape(turned, relax.ShapeExpr([batch, length, heads * size])))


def rotated(
    node: Node, x: relax.Expr, cos: relax.Expr, sin: relax.Expr, interleaved: bool, dims: int = 0
) -> relax.Expr:
    """Return ``[batch, length, heads, size]`` with its first ``dims`` elements rotated.

    Args:
        node: the node that is converted.
        x: the tensor.
        cos: cosines ``[batch or 1, length, dims / 2]``.
        sin: sines of the same shape.
        interleaved: whether even and odd elements are a pair, instead of the halves.
        dims: rotated elements of a head, or 0 for all.
    """
    emit = node.emit
    size = shape_of(x)[3]
    if not isinstance(size, int):
        raise Unsupported("the size of a head is symbolic; fix it")
    dims = dims or size
    half = dims // 2
    if shape_of(cos)[-1] != half or shape_of(sin)[-1] != half:
        raise Unsupported(
            f"the caches have {shape_of(cos)[-1]} columns, and {dims} rotated elements need {half}"
        )
    cos, sin = (emit(relax.op.expand_dims(t, 2)) for t in (cos, sin))
    if interleaved:
        first = emit(relax.op.strided_slice(x, [3], [0], [dims], [2]))
        second = emit(relax.op.strided_slice(x, [3], [1], [dims], [2]))
    else:
        first = emit(relax.op.strided_slice(x, [3], [0], [half]))
        second = emit(relax.op.strided_slice(x, [3], [half], [dims]))
    real = emit(relax.op.subtract(relax.op.multiply(cos, first), relax.op.multiply(sin, second)))
    imaginary = emit(relax.op.add(relax.op.multiply(sin, first), relax.op.multiply(cos, second)))
    if interleaved:
        pairs = emit(relax.op.stack([real, imaginary], axis=4))
        turned = emit(relax.op.reshape(pairs, relax.ShapeExpr([*shape_of(x)[:3], dims])))
    else:
        turned = emit(relax.op.concat([real, imaginary], axis=3))
    if dims == size:
        return turned
    return emit(relax.op.concat([turned, relax.op.strided_slice(x, [3], [dims], [size])], axis=3))
