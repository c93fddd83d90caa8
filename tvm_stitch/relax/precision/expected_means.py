# SPDX-License-Identifier: Apache-2.0
"""Expected means of the channels that convolutions read, from the model alone.

A rounded weight moves the mean of a convolution's result. It moves it by the sum of its roundings, each times the mean
of the channel that it multiplies. A bias can take that back if the means are known. Nagel et al. (*Data-Free
Quantization Through Weight Equalization and Bias Correction*, 2019) read them from batch norms.

Samples of each channel pass through the model, without positions: each tap of a window reads a sample of its own. So a
tensor is an array of its rank, with samples along the first axis, and the extents of images are 1. Inputs are random
numbers of a normal distribution. A trained model's batch norms know the means of what they read. If these agree with
the samples, the norms' results get the means and deviations that the norms ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ... import compat
from ..rewriting.operators import operator_name
from ..rewriting.values import bindings_of
from ..rewriting.views import shape_of

SAMPLES = 128
"""Samples of each channel: means are right to a tenth of a channel's deviation."""
TRUSTED = 0.5
"""Least part of the variance of a model's running means that must be expected, for its norms to be trusted."""
MOST_TAPS = 16
"""Most taps of a pool that are sampled."""

_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
}
_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "relax.nn.relu": lambda x: np.maximum(x, 0),
    "relax.sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relax.nn.silu": lambda x: x / (1 + np.exp(-x)),
    "relax.nn.gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relax.tanh": np.tanh,
    "relax.exp": np.exp,
    "relax.sqrt": np.sqrt,
    "relax.negative": np.negative,
}
_SAME = frozenset({"relax.image.resize2d", "relax.nn.pad", "relax.nn.dropout", "relax.astype"})
"""Operators that leave the numbers of a channel about as they are."""
_CONVOLUTIONS = frozenset(f"relax.nn.conv{n}d" for n in (1, 2, 3))
Sampled = np.ndarray | tuple[np.ndarray, ...]


def expected_means(func: relax.Function) -> dict[relax.Var, np.ndarray]:
    """Return the expected means of the data of convolutions, for each channel, by the convolutions' variables.

    Convolutions whose data passed through operators that are not known here are left out.

    Args:
        func: a float32 function. Its parameters of three axes or more have channels behind the batch.
    """
    trained = _Sampler(func, by_norms=True)
    if trained.expected() >= TRUSTED:
        return trained.means
    return _Sampler(func, by_norms=False).means


def valid_fractions(call: relax.Call) -> np.ndarray:
    """Return for each tap of a convolution's window the fraction of results for which it does not read padding."""
    attrs, data, out = call.attrs, shape_of(call.args[0]) or (), shape_of(call) or ()
    layout = str(attrs.data_layout)
    spatial = [layout.find(axis) for axis in layout if axis not in "NC"]
    of_weight = zip(shape_of(call.args[1]) or (), str(attrs.kernel_layout), strict=True)
    kernel = [int(extent) for extent, axis in of_weight if axis not in "OI"]
    fractions = np.ones(kernel)
    for n, at in enumerate(spatial):
        if not isinstance(data[at], int) or not isinstance(out[at], int):
            continue
        stride, before, dilation = (int(each[n]) for each in (attrs.strides, attrs.padding, attrs.dilation))
        taps = np.arange(kernel[n])[:, None] * dilation + np.arange(out[at]) * stride - before
        valid = ((taps >= 0) & (taps < data[at])).mean(1)
        fractions *= valid.reshape([-1 if i == n else 1 for i in range(len(kernel))])
    return fractions


class _Sampler:
    """Passes samples through a function once.

    Attributes:
        means: the means of the data of convolutions.
        found, claimed: the means of what batch norms read, expected and as the norms say.
    """

    def __init__(self, func: relax.Function, by_norms: bool):
        self.random = np.random.default_rng(0)
        self.by_norms = by_norms
        self.means: dict[relax.Var, np.ndarray] = {}
        self.found: list[np.ndarray] = []
        self.claimed: list[np.ndarray] = []
        self.known: dict[relax.Var, Sampled] = {}
        for parameter in func.params:
            shape = shape_of(parameter) or ()
            if len(shape) > 2 and isinstance(shape[1], int) and str(parameter.ty.dtype) == "float32":
                self.known[parameter] = self._normal(shape[1], len(shape))
        with np.errstate(all="ignore"):
            for binding in bindings_of(func.body):
                try:
                    made = self._made(binding.var, binding.value)
                except (AttributeError, IndexError, TypeError, ValueError):
                    continue  # shapes are unknown, or samples have other extents: an estimate fails no compilation
                if made is not None and _fits(made, binding.var.ty):
                    self.known[binding.var] = made

    def expected(self) -> float:
        """Return which part of the variance of the running means is expected. It may be negative."""
        if not self.found:
            return 0.0
        found, claimed = np.concatenate(self.found), np.concatenate(self.claimed)
        spread = float(np.square(claimed - claimed.mean()).mean())
        return 1 - float(np.square(found - claimed).mean()) / spread if spread > 0 else 0.0

    def _normal(self, channels: int, rank: int, axis: int = 1) -> np.ndarray:
        shape = [SAMPLES] + [1] * (rank - 1)
        shape[axis] = channels
        return self.random.standard_normal(shape, "float32")

    def _shuffled(self, array: np.ndarray) -> np.ndarray:
        return array[self.random.permutation(len(array))]

    def _of(self, value: relax.Expr) -> Any:
        """Return the samples of a variable or of each field of a tuple, the array of a constant, or None."""
        if isinstance(value, tvm.ir.GenericConst):
            return value.value.numpy()
        if not isinstance(value, relax.Tuple):
            return self.known.get(value)
        fields = tuple(self._of(field) for field in value.fields)
        return fields if fields and all(isinstance(each, np.ndarray) for each in fields) else None

    def _made(self, var: relax.Var, value: relax.Expr) -> Sampled | None:
        name, shape = operator_name(value), shape_of(var)
        if isinstance(value, (relax.Var, relax.Tuple)):
            return self._of(value)
        if isinstance(value, relax.TupleGetItem):
            several = self._of(value.tuple_value)
            at = int(value.index)
            return several[at] if isinstance(several, tuple) and at < len(several) else None
        if not name or not value.args:
            return None
        if name in _CONVOLUTIONS:
            return self._convolved(var, value)
        if name == "relax.nn.batch_norm":
            return self._normed(value)
        x, before = self._of(value.args[0]), shape_of(value.args[0]) or ()
        if name == "relax.concat" and isinstance(x, tuple):
            return _joined(x, int(value.attrs.axis), shape or ())
        if not isinstance(x, np.ndarray):
            return None
        if name in _BINARY:
            return self._combined(_BINARY[name], x, self._of(value.args[1]), len(shape or ()))
        if name in _UNARY:
            return _UNARY[name](x)
        if name in _SAME:
            return x
        if name == "relax.clip":
            least, most = (float(bound.value) for bound in value.args[1:])
            return np.clip(x, least, most)
        if "_pool" in name:
            return self._pooled(name, value, x)
        if name in ("relax.mean", "relax.sum"):
            return _reduced(x, value, before, name == "relax.sum")
        if name == "relax.reshape" and isinstance(value.args[0], tvm.ir.GenericConst):
            return x.reshape([int(e) for e in shape or ()])
        if name == "relax.reshape":
            return _reshaped(x, before, shape or ())
        if name == "relax.permute_dims" and value.attrs.axes is not None and int(value.attrs.axes[0]) == 0:
            return x.transpose([int(a) for a in value.attrs.axes])
        if name == "relax.nn.softmax" and x.shape[int(value.attrs.axis)] > 1:
            spread = np.exp(x - x.max(int(value.attrs.axis), keepdims=True))
            return spread / spread.sum(int(value.attrs.axis), keepdims=True)
        if name == "relax.split":
            return _divided(x, value, [f.shape.values for f in var.ty.fields])
        return None

    def _convolved(self, var: relax.Var, call: relax.Call) -> np.ndarray | None:
        x, weight, attrs = self._of(call.args[0]), self._of(call.args[1]), call.attrs
        layouts = str(attrs.data_layout), str(attrs.kernel_layout)
        if not isinstance(x, np.ndarray) or layouts[0][:2] != "NC" or layouts[1][:2] != "OI":
            return None
        if (
            math.prod(x.shape[2:]) > 1
            or len(x) != SAMPLES
            or x.shape[1] != (shape_of(call.args[0]) or x.shape)[1]
        ):
            return None
        rank, x = x.ndim, x.reshape(SAMPLES, -1)
        self.means[var] = x.mean(0)
        if not isinstance(weight, np.ndarray):
            return None
        groups, fractions = int(attrs.groups), valid_fractions(call)
        matrices = weight.astype("float32").reshape(groups, len(weight) // groups, weight.shape[1], -1)
        matrices = np.ascontiguousarray(matrices.transpose(3, 0, 2, 1))  # NumPy multiplies others slowly
        centre, total = fractions.size // 2, np.zeros((groups, SAMPLES, matrices.shape[-1]), "float32")
        for tap, fraction in enumerate(fractions.reshape(-1)):
            # The tap in the middle keeps its samples, because a residual may be added to the result.
            seen = x if tap == centre else self._shuffled(x)
            seen = seen * (self.random.random((SAMPLES, 1), "float32") < fraction)
            total += seen.reshape(SAMPLES, groups, -1).transpose(1, 0, 2) @ matrices[tap]
        return total.transpose(1, 0, 2).reshape(SAMPLES, -1, *[1] * (rank - 2))

    def _normed(self, call: relax.Call) -> tuple[np.ndarray, ...] | None:
        x, *arrays = map(self._of, call.args)
        if call.attrs.training or any(array is None for array in arrays):
            return None
        rank, axis = len(shape_of(call.args[0]) or ()), int(call.attrs.axis)
        shape = [-1 if a == axis % max(rank, 1) else 1 for a in range(rank)]
        gamma, beta, mean, variance = (each.astype("float32").reshape(shape) for each in arrays)
        gamma = gamma if call.attrs.scale else np.ones_like(gamma)
        beta = beta if call.attrs.center else np.zeros_like(beta)
        if not isinstance(x, np.ndarray) or x.shape[1:] != gamma.shape[1:]:
            # Norms that are not trusted say nothing of a result whose operand is unknown.
            return (self._normal(gamma.size, rank, axis) * np.abs(gamma) + beta,) if self.by_norms else None
        self.found.append(x.mean(0).reshape(-1))
        self.claimed.append(mean.reshape(-1))
        if self.by_norms:
            deviation = np.maximum(x.std(0, keepdims=True), 1e-12)
            return ((x - x.mean(0, keepdims=True)) / deviation * gamma + beta,)
        return ((x - mean) * gamma / np.sqrt(variance + call.attrs.epsilon) + beta,)

    def _combined(self, function: Callable[[Any, Any], Any], x: Any, y: Any, rank: int) -> np.ndarray | None:
        """Return an operator of two operands, or None if a constant has numbers for positions or for images."""
        if not isinstance(y, np.ndarray):
            return None
        sampled = [each.shape for each in (x, y) if each.ndim == rank and len(each) == SAMPLES]
        try:
            result = np.asarray(function(x, y), "float32")
            return result if sampled and result.shape == np.broadcast_shapes(*sampled) else None
        except ValueError:  # shapes differ, because one has channels where another has positions
            return None

    def _pooled(self, name: str, call: relax.Call, x: np.ndarray) -> np.ndarray | None:
        if math.prod(x.shape[2:]) > 1:
            return None
        if "adaptive" in name:
            return _with_mean_of_samples(x) if "avg" in name else None
        taps = min(math.prod(int(e) for e in call.attrs.pool_size), MOST_TAPS)
        copies = [x, *(self._shuffled(x) for _ in range(taps - 1))]
        return (np.mean if "avg" in name else np.max)(copies, axis=0)


def _with_mean_of_samples(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x.mean(0, keepdims=True), x.shape)


def _reduced(x: np.ndarray, call: relax.Call, before: Sequence[Any], is_sum: bool) -> np.ndarray | None:
    """Return a mean or a sum. Along an axis without positions, the mean of the samples is that of the positions."""
    axes = [] if call.attrs.axis is None else [int(a) % x.ndim for a in call.attrs.axis]
    extents = [before[a] for a in axes]
    if not axes or 0 in axes or not all(isinstance(e, int) for e in extents):
        return None
    collapsed = any(x.shape[a] == 1 and extent > 1 for a, extent in zip(axes, extents))
    result = (_with_mean_of_samples(x) if collapsed else x).mean(
        tuple(axes), keepdims=bool(call.attrs.keepdims)
    )
    return result * np.float32(math.prod(extents)) if is_sum else result


def _reshaped(x: np.ndarray, before: Sequence[Any], after: Sequence[Any]) -> np.ndarray | None:
    """Return the samples of a reshape, or None if it joins channels with positions, or images with anything."""
    rest = (*before[1:], *after[1:])
    if not before or not after or before[0] != after[0] or not all(isinstance(e, int) for e in rest):
        return None
    if len(x) != SAMPLES or math.prod(before[1:]) != math.prod(after[1:]) or 0 in rest:
        return None
    shape, i, j = [SAMPLES], 1, 1
    while i < len(before) or j < len(after):
        axes, made = before[i : i + 1], after[j : j + 1]
        while math.prod(axes) != math.prod(made):
            if math.prod(axes) < math.prod(made):
                axes = before[i : i + len(axes) + 1]
            else:
                made = after[j : j + len(made) + 1]
        has = math.prod(x.shape[i : i + len(axes)])
        if has not in (1, math.prod(axes)):
            return None
        shape += made if has > 1 else [1] * len(made)
        i, j = i + len(axes), j + len(made)
    return x.reshape(shape)


def _fits(made: Sampled, info: Any) -> bool:
    """Return whether samples are finite, and have a value's extents, or 1, behind the axis of samples."""
    if isinstance(made, tuple):
        return isinstance(info, relax.TupleType) and all(map(_fits, made, info.fields))
    shape = info.shape.values if isinstance(getattr(info, "shape", None), relax.ShapeExpr) else None
    if shape is None or len(shape) != made.ndim:
        return False
    extents = (compat.int_value(extent) for extent in shape[1:])
    return all(has in (1, extent) for has, extent in zip(made.shape[1:], extents)) and bool(
        np.isfinite(made).all()
    )


def _joined(parts: tuple[np.ndarray, ...], axis: int, shape: Sequence[Any]) -> np.ndarray | None:
    """Return joined samples. Along an axis without positions, those of the first part."""
    if any(each.ndim != parts[0].ndim or len(each) != SAMPLES for each in parts):
        return None
    without_positions = {each.shape[axis] for each in parts} == {1} and shape[axis] != len(parts)
    return parts[0] if without_positions else np.concatenate(parts, axis)


def _divided(x: np.ndarray, call: relax.Call, shapes: list[Any]) -> tuple[np.ndarray, ...]:
    axis = int(call.attrs.axis)
    extents = [int(shape[axis]) for shape in shapes]
    if x.shape[axis] != sum(extents):
        return (x,) * len(extents)
    return tuple(np.split(x, np.cumsum(extents)[:-1], axis))
