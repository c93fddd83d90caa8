# SPDX-License-Identifier: Apache-2.0
"""Expected means of the channels that convolutions read, from the model alone.

A weight that is rounded moves the mean of a convolution's result: by the sum of its roundings, each times the mean of
the channel that it multiplies. A bias can take that back, if the means are known. (Nagel et al., *Data-Free Quantization
Through Weight Equalization and Bias Correction*, 2019, take them from batch norms.)

Samples of each channel pass through the model, without positions: each tap of a window reads a sample of its own. Inputs
are random numbers of a normal distribution. If the statistics of batch norms are those that the samples let expect, the
model was trained, and its norms say better what their results are. Samples are then made to have these means and deviations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

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


@dataclass(frozen=True, eq=False)
class Samples:
    """Numbers of a tensor: ``<samples, channels>`` in float32, and the axis of the tensor that has the channels."""

    array: np.ndarray
    axis: int = 1


def expected_means(func: relax.Function) -> dict[relax.Var, np.ndarray]:
    """Return the expected means of the data of convolutions, for each channel, by the convolutions' variables.

    Convolutions whose data passed through operators that are not known here are left out.

    Args:
        func: a float32 function. Its parameters of three axes or more have channels behind the batch.
    """
    sampled = [_Sampler(func, by_norms) for by_norms in (True, False)]
    trained, given = sampled
    return (trained if trained.expected() >= TRUSTED else given).means


def valid_fractions(call: relax.Call) -> np.ndarray:
    """Return for each tap of a convolution's window the fraction of results for which it does not read padding."""
    attrs, data, out = call.attrs, shape_of(call.args[0]) or (), shape_of(call) or ()
    layout = str(attrs.data_layout)
    spatial = [layout.find(axis) for axis in layout if axis not in "NC"]
    kernel = [
        int(e)
        for e, axis in zip(shape_of(call.args[1]) or (), str(attrs.kernel_layout), strict=True)
        if axis not in "OI"
    ]
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
        self.known: dict[relax.Expr, Samples | tuple[Samples, ...]] = {}
        self.arrays: dict[relax.Expr, np.ndarray] = {}
        for parameter in func.params:
            shape = shape_of(parameter) or ()
            if len(shape) > 2 and isinstance(shape[1], int) and str(parameter.ty.dtype) == "float32":
                self.known[parameter] = Samples(self._normal(shape[1]))
        with np.errstate(all="ignore"):
            for binding in bindings_of(func.body):
                made = self._made(binding.var, binding.value)
                if isinstance(made, tuple) or (made is not None and np.isfinite(made.array).all()):
                    self.known[binding.var] = made

    def expected(self) -> float:
        """Return which part of the variance of the running means is expected. It may be negative."""
        if not self.found:
            return 0.0
        found, claimed = np.concatenate(self.found), np.concatenate(self.claimed)
        spread = float(np.square(claimed - claimed.mean()).mean())
        return 1 - float(np.square(found - claimed).mean()) / spread if spread > 0 else 0.0

    def _normal(self, channels: int) -> np.ndarray:
        return self.random.standard_normal((SAMPLES, channels), "float32")

    def _shuffled(self, array: np.ndarray) -> np.ndarray:
        return array[self.random.permutation(len(array))]

    def _of(self, value: relax.Expr) -> Samples | tuple[Samples, ...] | None:
        """Return the samples of a variable, or of the fields of a tuple, or None if some are not known."""
        if not isinstance(value, relax.Tuple):
            return self.known.get(value)
        fields = [self.known.get(field) for field in value.fields]
        return tuple(f for f in fields if isinstance(f, Samples)) if all(fields) else None

    def _made(self, var: relax.Var, value: relax.Expr) -> Samples | tuple[Samples, ...] | None:
        name, shape = operator_name(value), shape_of(var)
        if isinstance(value, (relax.Var, relax.Tuple)):
            return self._of(value)
        if isinstance(value, relax.TupleGetItem):
            several = self._of(value.tuple_value)
            at = int(value.index)
            return several[at] if isinstance(several, tuple) and at < len(several) else None
        if name == "relax.reshape" and isinstance(value.args[0], tvm.ir.GenericConst) and shape is not None:
            self.arrays[var] = value.args[0].value.numpy().reshape([int(e) for e in shape])
            return None
        if name in _CONVOLUTIONS:
            return self._convolved(var, value)
        if name == "relax.nn.batch_norm":
            return self._normed(value)
        if name in _BINARY:
            return self._combined(name, value)
        x = self._of(value.args[0]) if value.args else None
        if name == "relax.concat":
            return _joined(x, int(value.attrs.axis), len(shape or ()))
        if not isinstance(x, Samples):
            return None
        if name in _UNARY:
            return Samples(_UNARY[name](x.array), x.axis)
        if name == "relax.clip":
            least, most = (float(bound.value) for bound in value.args[1:])
            return Samples(np.clip(x.array, least, most), x.axis)
        if name in _SAME:
            return x
        if "_pool" in name:
            return self._pooled(name, value, x)
        before = shape_of(value.args[0]) or ()
        if name == "relax.mean":
            return _averaged(x, value, len(before))
        if name == "relax.reshape":
            return _reshaped(x, before, shape or ())
        if name == "relax.split":
            return _divided(x, value, [f.shape.values[x.axis] for f in var.ty.fields])
        return None

    def _convolved(self, var: relax.Var, call: relax.Call) -> Samples | None:
        x, attrs = self.known.get(call.args[0]), call.attrs
        layouts = str(attrs.data_layout), str(attrs.kernel_layout)
        if not isinstance(x, Samples) or x.axis != 1 or layouts[0][:2] != "NC" or layouts[1][:2] != "OI":
            return None
        self.means[var] = x.array.mean(0)
        if not isinstance(call.args[1], tvm.ir.GenericConst):
            return None
        groups = int(attrs.groups)
        weight = np.asarray(call.args[1].value.numpy(), "float32")
        fractions = valid_fractions(call)
        weight = weight.reshape(groups, len(weight) // groups, weight.shape[1], -1)
        centre, total = fractions.size // 2, np.zeros((groups, SAMPLES, weight.shape[1]), "float32")
        for tap, fraction in enumerate(fractions.reshape(-1)):
            # The tap in the middle keeps its samples, because a residual may be added to the result.
            seen = x.array if tap == centre else self._shuffled(x.array)
            seen = seen * (self.random.random((SAMPLES, 1)) < fraction)
            split = seen.astype("float32").reshape(SAMPLES, groups, -1).transpose(1, 0, 2)
            total += split @ weight[..., tap].transpose(0, 2, 1)
        return Samples(total.transpose(1, 0, 2).reshape(SAMPLES, -1))

    def _normed(self, call: relax.Call) -> tuple[Samples, ...] | None:
        if call.attrs.training or not all(isinstance(each, tvm.ir.GenericConst) for each in call.args[1:]):
            return None
        gamma, beta, mean, variance = (each.value.numpy().astype("float32") for each in call.args[1:])
        gamma = gamma if call.attrs.scale else np.ones_like(gamma)
        beta = beta if call.attrs.center else np.zeros_like(beta)
        x, axis = self.known.get(call.args[0]), int(call.attrs.axis)
        if not isinstance(x, Samples) or x.axis != axis:
            return (Samples(self._normal(len(gamma)) * np.abs(gamma) + beta, axis),)
        self.found.append(x.array.mean(0))
        self.claimed.append(mean)
        if self.by_norms:
            deviation = np.maximum(x.array.std(0), 1e-12)
            return (Samples((x.array - x.array.mean(0)) / deviation * gamma + beta, axis),)
        scale = gamma / np.sqrt(variance + call.attrs.epsilon)
        return (Samples((x.array - mean) * scale + beta, axis),)

    def _combined(self, name: str, call: relax.Call) -> Samples | None:
        sides = [self._side(arg, call) for arg in call.args]
        samples = [side for side in sides if isinstance(side, Samples)]
        if not samples or any(side is None for side in sides) or len({each.axis for each in samples}) > 1:
            return None
        arrays = [side.array if isinstance(side, Samples) else side for side in sides]
        return Samples(_BINARY[name](*arrays).astype("float32"), samples[0].axis)

    def _side(self, value: relax.Expr, call: relax.Call) -> Samples | np.ndarray | None:
        """Return an operand: samples, or a constant of one number for each channel as ``<1, channels>``."""
        if isinstance(found := self.known.get(value), Samples):
            return found
        other = [self.known.get(arg) for arg in call.args if not arg.same_as(value)]
        array = self.arrays.get(value)
        array = value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else array
        if array is None or len(other) != 1 or not isinstance(other[0], Samples):
            return None
        rank = len(shape_of(call) or ())
        padded = (1,) * (rank - array.ndim) + array.shape
        is_of_channels = math.prod(padded) in (1, padded[other[0].axis]) if padded else True
        return array.reshape(1, -1) if is_of_channels else None

    def _pooled(self, name: str, call: relax.Call, x: Samples) -> Samples | None:
        if x.axis != 1:
            return None
        if "adaptive" in name:
            return _broadcast_mean(x) if "avg" in name else None
        taps = min(math.prod(int(e) for e in call.attrs.pool_size), MOST_TAPS)
        copies = [x.array, *(self._shuffled(x.array) for _ in range(taps - 1))]
        combine = np.mean if "avg" in name else np.max
        return Samples(combine(copies, axis=0).astype("float32"))


def _broadcast_mean(x: Samples, axis: int = 1) -> Samples:
    return Samples(np.broadcast_to(x.array.mean(0), x.array.shape), axis)


def _averaged(x: Samples, call: relax.Call, rank: int) -> Samples | None:
    axes = None if call.attrs.axis is None else {int(a) % rank for a in call.attrs.axis}
    if axes is None or x.axis in axes or 0 in axes:
        return None
    return _broadcast_mean(x, x.axis if call.attrs.keepdims else x.axis - sum(a < x.axis for a in axes))


def _reshaped(x: Samples, before: Any, after: Any) -> Samples | None:
    """Return the samples if an axis of the result has the same channels, in front of which are as many elements."""
    if not all(isinstance(e, int) for e in (*before[: x.axis + 1], *after)):
        return None
    products = [1, *itertools.accumulate(after, lambda a, b: a * b)]
    wanted = math.prod(before[: x.axis]), before[x.axis]
    found = [i for i, extent in enumerate(after) if (products[i], extent) == wanted]
    return Samples(x.array, found[0]) if found else None


def _joined(x: Any, axis: int, rank: int) -> Samples | None:
    if not isinstance(x, tuple) or len({each.axis for each in x}) != 1:
        return None
    if axis % max(rank, 1) != x[0].axis:
        return x[0]
    return Samples(np.concatenate([each.array for each in x], axis=1), x[0].axis)


def _divided(x: Samples, call: relax.Call, extents: list[Any]) -> tuple[Samples, ...]:
    if int(call.attrs.axis) != x.axis:
        return (x,) * len(extents)
    bounds = np.cumsum([int(e) for e in extents])[:-1]
    return tuple(Samples(part, x.axis) for part in np.split(x.array, bounds, axis=1))
