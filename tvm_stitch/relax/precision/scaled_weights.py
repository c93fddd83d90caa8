# SPDX-License-Identifier: Apache-2.0
"""Multiply the scale of a batch norm into the constant weight of the convolution before it, in float64.

A weight that is scaled before it becomes half is rounded once. The library that computes the convolution can then add
what is left of the norm, a bias, to its sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import tvm
from tvm import relax

from ...graph.extent import is_static
from ..rewriting.functions import own_functions
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers, only_reader_inside, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import shape_of
from .expected_means import expected_means, valid_fractions

CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")


@dataclass(frozen=True, eq=False)
class ScaledWeight:
    """The convolution before a batch norm, its weight times the norm's scale, and the norm's shift with its bias.

    Attributes:
        convolution: the call.
        weight: float32, laid out as the convolution's weight.
        shift: float32, with an element for each channel, and all axes of the convolution's result.
        statistics: the constant mean and variance, which are results of the norm as well.
    """

    convolution: relax.Call
    weight: np.ndarray
    shift: np.ndarray
    statistics: tuple[relax.Expr, relax.Expr]


def with_scaled_weights(mod: tvm.IRModule, dtype: str) -> tvm.IRModule:
    """Return a float32 module whose batch norms behind convolutions are biases. All constants must be known."""
    weights: dict[relax.Var, ScaledWeight] = {}
    for _, func in own_functions(mod):
        values = dict(relax.analysis.get_var2val(func).items())
        readers = readers_of(func)
        norms = [var for var, call in values.items() if operator_name(call) == "relax.nn.batch_norm"]
        means = expected_means(func) if norms else {}
        for var in norms:
            scaled = _scaled(values[var], values, readers, means, dtype)
            weights |= {} if scaled is None else {var: scaled}
    if not weights:
        return mod
    why = "a weight that is scaled before it becomes half is rounded once"
    rule = Rule(why, lambda match: _biased(match, weights[match.var]), variables=weights, leaves_unused=True)
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(passes)(apply_rules(mod, [rule]))


def _scaled(
    norm: relax.Call,
    values: Mapping[Any, Any],
    readers: Readers,
    means: Mapping[relax.Var, np.ndarray],
    dtype: str,
) -> ScaledWeight | None:
    x, *constants = norm.args
    found = _convolution_before(x, values, readers)
    if found is None or norm.attrs.training:
        return None
    var, convolution, bias = found
    weight, attrs = convolution.args[1], convolution.attrs
    arrays = [_float32(value) for value in (weight, *constants)]
    layout = str(attrs.out_layout) or str(attrs.data_layout)
    is_channel = int(norm.attrs.axis) % len(layout) == layout.find("C")
    if any(array is None for array in arrays) or not is_channel:
        return None
    array, gamma, beta, mean, variance = (np.asarray(each, "float64") for each in arrays)
    with np.errstate(all="ignore"):
        scale = (gamma if norm.attrs.scale else 1.0) / np.sqrt(variance + norm.attrs.epsilon)
        shift = (beta if norm.attrs.center else 0.0) + (bias - mean) * scale
        outputs = [-1 if axis == "O" else 1 for axis in str(attrs.kernel_layout)]
        product = (array * scale.reshape(outputs)).astype("float32")
        if var in means:
            moved = _moved(convolution, product, means[var], dtype)
            shift = shift - np.where(np.isfinite(moved), moved, 0.0)
    if not (np.isfinite(product).all() and np.isfinite(shift).all()):
        return None
    channels = [-1 if axis == "C" else 1 for axis in layout]
    return ScaledWeight(convolution, product, shift.astype("float32").reshape(channels), tuple(constants[2:]))


def _moved(call: relax.Call, weight: np.ndarray, means: np.ndarray, dtype: str) -> np.ndarray:
    """Return how much rounding a weight moves the mean of each channel of a convolution's result.

    Args:
        call: the convolution. Output channels are the first axis of its weight, input channels the second.
        weight: float32.
        means: the expected mean of each channel of the data.
        dtype: the half type to which the weight will be rounded.
    """
    groups = int(call.attrs.groups)
    wide = weight.astype("float64")
    rounding = (weight.astype(dtype).astype("float64") - wide).reshape(groups, -1, *weight.shape[1:])
    by_channel = (rounding * valid_fractions(call)).sum(axis=tuple(range(3, rounding.ndim)))
    return np.einsum("goi,gi->go", by_channel, means.reshape(groups, -1)).reshape(-1)


def _convolution_before(
    x: relax.Expr, values: Mapping[Any, Any], readers: Readers
) -> tuple[relax.Var, relax.Call, np.ndarray] | None:
    """Return the convolution whose result is ``x``, with its variable, and the constant bias that is added, in float64.

    None if ``x`` is another value, or if anything else reads the result.
    """
    bias, call = np.zeros(1), values.get(x) if isinstance(x, relax.Var) else None
    if call is None or only_reader_inside(readers, x) is None:
        return None
    if operator_name(call) == "relax.add":
        shape = shape_of(x) or ()
        for at, other in (call.args, call.args[::-1]):
            convolution, array = values.get(at) if isinstance(at, relax.Var) else None, _bias(other, values)
            if convolution is None or operator_name(convolution) not in CONVOLUTIONS or array is None:
                continue
            attrs = convolution.attrs
            layout = str(attrs.out_layout) or str(attrs.data_layout)
            channel = layout.find("C")
            extents = [1] * len(layout)
            extents[channel] = int(array.size)
            padded = (1,) * (len(layout) - array.ndim) + array.shape
            if list(padded) != extents or len(shape) != len(layout) or shape[channel] != array.size:
                return None
            x, call, bias = at, convolution, array.reshape(-1).astype("float64")
            break
    if operator_name(call) not in CONVOLUTIONS or only_reader_inside(readers, x) is None:
        return None
    return x, call, bias


def _bias(value: relax.Expr, values: Mapping[Any, Any]) -> np.ndarray | None:
    """Return the array of a float32 constant, also if it is reshaped, or None for any other value."""
    call = values.get(value) if isinstance(value, relax.Var) else None
    if call is None or operator_name(call) != "relax.reshape":
        return _float32(value)
    array, shape = _float32(call.args[0]), shape_of(call)
    return None if array is None or shape is None or not is_static(shape) else array.reshape(shape)


def _biased(match: Match, scaled: ScaledWeight) -> relax.Expr:
    """Return the results of a norm: the convolution with the scaled weight and the shift, mean and variance."""
    call = scaled.convolution
    weight = relax.const(scaled.weight, "float32")
    convolution = match.emit(relax.Call(call.op, [match.now(call.args[0]), weight], call.attrs, call.ty_args))
    result = match.emit(relax.op.add(convolution, relax.const(scaled.shift, "float32")))
    return relax.Tuple([result, *scaled.statistics])


def _float32(value: relax.Expr) -> np.ndarray | None:
    """Return the array of a float32 constant, or None for any other value."""
    if not isinstance(value, tvm.ir.GenericConst) or str(value.value.dtype) != "float32":
        return None
    return np.asarray(value.value.numpy())
