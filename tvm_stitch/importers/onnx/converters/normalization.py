# SPDX-License-Identifier: Apache-2.0
"""Normalizations with all their results and types of intermediate values."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .node import ANY, Conversion, Node, Unsupported, dtype_of, positive, scalar, shape_of

_HALF = ("float16", "bfloat16")


def _wide(node: Node, x: relax.Expr, dtype: str) -> relax.Expr:
    return x if dtype_of(x) == dtype else node.emit(relax.op.astype(x, dtype))


def _like(node: Node, x: relax.Expr, dtype: str) -> relax.Expr:
    return x if dtype_of(x) == dtype else node.emit(relax.op.astype(x, dtype))


def layer_norm(
    node: Node, x: relax.Expr, scale: relax.Expr | None, bias: relax.Expr | None, axis: int, epsilon: float
) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Return a layer norm from ``axis`` on, its means, and its inverse standard deviations, in float32 at least."""
    dtype = dtype_of(x)
    wide = "float32" if dtype in _HALF else dtype
    rank = len(shape_of(x))
    axes = list(range(positive(axis, rank), rank))
    x = _wide(node, x, wide)
    mean = node.emit(relax.op.mean(x, axes, keepdims=True))
    centred = node.emit(relax.op.subtract(x, mean))
    variance = node.emit(relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True))
    inverse = node.emit(relax.op.rsqrt(relax.op.add(variance, scalar(epsilon, wide))))
    y = node.emit(relax.op.multiply(centred, inverse))
    if scale is not None:
        y = node.emit(relax.op.multiply(y, _wide(node, scale, wide)))
    if bias is not None:
        y = node.emit(relax.op.add(y, _wide(node, bias, wide)))
    return _like(node, y, dtype), mean, inverse


def _layer_normalization(node: Node) -> tuple[relax.Expr, ...]:
    """Convert a LayerNormalization. Its one common form is TVM's operator, which has a kernel."""
    x, dtype = node.tensor(0), node.dtype(0)
    given = node.attributes
    scale, bias = node.tensor(1), node.optional(2)
    wide = "float32" if given["stash_type"] == 1 else dtype
    if not any(node.outputs[1:]) and dtype == "float32" == dtype_of(scale):
        dims, rank = shape_of(scale), len(node.shape(0))
        first = positive(given["axis"], rank)
        if dims == node.shape(0)[first:] and all(isinstance(d, int) for d in dims):
            shift = bias if bias is not None else relax.const(np.zeros(dims, "float32"))
            if shape_of(shift) == dims:
                axes = list(range(first - rank, 0))
                return (relax.op.nn.layer_norm(x, scale, shift, axes, given["epsilon"]),)
    y, mean, inverse = layer_norm(node, _wide(node, x, wide), scale, bias, given["axis"], given["epsilon"])
    return _like(node, y, dtype), mean, inverse


def rms_norm(
    node: Node, x: relax.Expr, scale: relax.Expr | None, axis: int, epsilon: float, wide: str
) -> relax.Expr:
    """Return a tensor divided by the root of its mean square from ``axis`` on, times ``scale``."""
    dtype, rank = dtype_of(x), len(shape_of(x))
    axes = list(range(positive(axis, rank), rank))
    x = _wide(node, x, wide)
    square = node.emit(relax.op.mean(relax.op.multiply(x, x), axes, keepdims=True))
    inverse = node.emit(relax.op.rsqrt(relax.op.add(square, scalar(epsilon, wide))))
    y = node.emit(relax.op.multiply(x, inverse))
    if scale is None:
        return _like(node, y, dtype)
    return node.emit(relax.op.multiply(_like(node, y, dtype_of(scale)), scale))


def _rms_normalization(node: Node) -> relax.Expr:
    dtype = node.dtype(0)
    wide = "float32" if dtype in _HALF and node.attributes["stash_type"] == 1 else dtype
    return rms_norm(
        node, node.tensor(0), node.tensor(1), node.attributes["axis"], node.attributes["epsilon"], wide
    )


def _batch_normalization(node: Node) -> tuple[relax.Expr, ...]:
    x, dtype, given = node.tensor(0), node.dtype(0), node.attributes
    rank = len(node.shape(0))
    wide = "float32" if dtype in _HALF else dtype
    training = bool(given.get("training_mode", 0))
    if node.opset < 7 and not given.get("is_test", 0):
        raise Unsupported("it computes statistics of the batch (is_test = 0); export the model for inference")
    if not training and any(node.outputs[1:]):
        raise Unsupported("it has results of training without training_mode; export the model for inference")
    if rank < 2:
        raise Unsupported(f"its input has {rank} dimensions, and needs at least 2")
    dims = [1, -1] + [1] * (rank - 2)

    def column(position: int) -> relax.Expr:
        value = node.emit(relax.op.reshape(node.tensor(position), dims))
        return _wide(node, value, wide)

    wide_x = _wide(node, x, wide)
    mean, variance = column(3), column(4)
    results: list[relax.Expr] = []
    if training:
        axes = [0, *range(2, rank)]
        momentum = given["momentum"]
        now = node.emit(relax.op.mean(wide_x, axes, keepdims=True))
        centred = node.emit(relax.op.subtract(wide_x, now))
        spread = node.emit(relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True))
        for position, (old, new) in ((3, (mean, now)), (4, (variance, spread))):
            running = node.emit(
                relax.op.add(
                    relax.op.multiply(old, scalar(momentum, wide)),
                    relax.op.multiply(new, scalar(1 - momentum, wide)),
                )
            )
            flat = node.emit(relax.op.reshape(running, [-1]))
            results.append(_like(node, flat, node.dtype(position)))
        mean, variance = now, spread
    elif dtype == "float32" and all(node.dtype(i) == "float32" for i in (1, 2, 3, 4)):
        norm = relax.op.nn.batch_norm(
            x, *(node.tensor(i) for i in (1, 2, 3, 4)), axis=1, epsilon=given["epsilon"], training=False
        )
        return (node.emit(relax.TupleGetItem(node.emit(norm), 0)),)
    inverse = node.emit(relax.op.rsqrt(relax.op.add(variance, scalar(given["epsilon"], wide))))
    y = relax.op.multiply(relax.op.multiply(relax.op.subtract(wide_x, mean), inverse), column(1))
    y = node.emit(relax.op.add(y, column(2)))
    return _like(node, y, dtype), *results


def _mean_variance(node: Node) -> relax.Expr:
    axes = list(node.attributes["axes"])
    x, dtype = node.tensor(0), node.dtype(0)
    wide = "float32" if dtype in _HALF else dtype
    x = _wide(node, x, wide)
    centred = node.emit(relax.op.subtract(x, relax.op.mean(x, axes, keepdims=True)))
    variance = node.emit(relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True))
    deviation = relax.op.add(relax.op.sqrt(variance), scalar(1e-9, wide))
    return _like(node, node.emit(relax.op.divide(centred, deviation)), dtype)


def _instance_normalization(node: Node) -> relax.Expr:
    x, dtype = node.tensor(0), node.dtype(0)
    wide = "float32" if dtype in _HALF else dtype
    rank = len(node.shape(0))
    y, _, _ = layer_norm(node, _wide(node, x, wide), None, None, 2, node.attributes["epsilon"])
    column = [1, -1] + [1] * (rank - 2)
    scale, bias = (_wide(node, node.emit(relax.op.reshape(node.tensor(i), column)), wide) for i in (1, 2))
    return _like(node, node.emit(relax.op.add(relax.op.multiply(y, scale), bias)), dtype)


def _group_normalization(node: Node) -> relax.Expr:
    """Normalize groups of channels. Scale and bias are of groups before operator set 21, then of channels."""
    x, dtype, dims = node.tensor(0), node.dtype(0), node.shape(0)
    groups = node.attributes["num_groups"]
    wide = dtype if node.attributes.get("stash_type", 1) != 1 or dtype not in _HALF else "float32"
    if not isinstance(dims[1], int) or dims[1] % groups:
        raise Unsupported(f"{dims[1]} channels are no multiple of {groups} groups")
    grouped = node.emit(
        relax.op.reshape(_wide(node, x, wide), relax.ShapeExpr([dims[0], groups, _rest(dims, groups)]))
    )
    y, _, _ = layer_norm(node, grouped, None, None, 2, node.attributes["epsilon"])
    scale, bias = node.tensor(1), node.tensor(2)
    if node.opset < 21:
        scale, bias = (node.emit(relax.op.repeat(t, dims[1] // groups, 0)) for t in (scale, bias))
    column = [1, dims[1]] + [1] * (len(dims) - 2)
    y = _like(node, node.emit(relax.op.reshape(y, relax.ShapeExpr(dims))), dtype)
    scale, bias = (node.emit(relax.op.reshape(t, column)) for t in (scale, bias))
    return relax.op.add(relax.op.multiply(y, scale), bias)


def _rest(dims: list, groups: int) -> object:
    result = dims[1] // groups
    for each in dims[2:]:
        result = result * each
    return result


def _lrn(node: Node) -> relax.Expr:
    """Divide by sums of squares over ``size`` neighbouring channels: one more behind than before, if it is even."""
    x, dims, given = node.tensor(0), node.shape(0), node.attributes
    size, dtype = given["size"], node.dtype(0)
    if not isinstance(dims[1], int):
        raise Unsupported("its channels are symbolic; fix them")
    before, behind = (size - 1) // 2, size - 1 - (size - 1) // 2
    square = node.emit(relax.op.multiply(x, x))
    band = np.zeros((dims[1], dims[1]), "float64")
    for channel in range(dims[1]):
        band[channel, max(0, channel - before) : channel + behind + 1] = 1.0
    flat = node.emit(
        relax.op.reshape(square, relax.ShapeExpr([dims[0], dims[1], _rest([0, 1, *dims[2:]], 1)]))
    )
    sums = node.emit(relax.op.matmul(relax.const(band.astype(dtype), dtype), flat))
    sums = node.emit(relax.op.reshape(sums, relax.ShapeExpr(dims)))
    base = relax.op.add(
        scalar(given["bias"], dtype), relax.op.multiply(sums, scalar(given["alpha"] / size, dtype))
    )
    return relax.op.divide(x, relax.op.power(base, scalar(given["beta"], dtype)))


def _lp_normalization(node: Node) -> relax.Expr:
    """Divide by the norm along an axis. ONNX Runtime returns zeros where the norm is zero."""
    x, dtype = node.tensor(0), node.dtype(0)
    axis = [positive(node.attributes["axis"], len(node.shape(0)))]
    if node.attributes["p"] == 1:
        norm = node.emit(relax.op.sum(relax.op.abs(x), axis, keepdims=True))
    else:
        norm = node.emit(relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), axis, keepdims=True)))
    zero = scalar(0.0, dtype)
    empty = node.emit(relax.op.equal(norm, zero))
    return relax.op.where(empty, zero, relax.op.divide(x, relax.op.where(empty, scalar(1.0, dtype), norm)))


_EPSILON = {"epsilon": ANY}

CONVERSIONS = {
    ("", "LayerNormalization"): Conversion(
        _layer_normalization, {"axis": ANY, "epsilon": ANY, "stash_type": ANY}
    ),
    ("", "RMSNormalization"): Conversion(
        _rms_normalization, {"axis": ANY, "epsilon": ANY, "stash_type": ANY}
    ),
    ("", "BatchNormalization"): Conversion(
        _batch_normalization,
        {"epsilon": ANY, "momentum": ANY, "training_mode": ANY, "is_test": (1,), "spatial": (1,)},
        since=6,
    ),
    ("", "MeanVarianceNormalization"): Conversion(_mean_variance, {"axes": ANY}),
    ("", "InstanceNormalization"): Conversion(_instance_normalization, _EPSILON, since=6),
    ("", "GroupNormalization"): Conversion(
        _group_normalization, {"epsilon": ANY, "num_groups": ANY, "stash_type": ANY}
    ),
    ("", "LRN"): Conversion(_lrn, dict.fromkeys(("alpha", "beta", "bias", "size"), ANY)),
    ("", "LpNormalization"): Conversion(_lp_normalization, {"axis": ANY, "p": (1, 2)}),
}
