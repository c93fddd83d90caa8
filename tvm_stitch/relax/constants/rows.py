# SPDX-License-Identifier: Apache-2.0
"""Products of rows by constant weights, and operators that add to or scale the channels of each row.

A matmul by a constant matrix is such a product. So is a convolution with channels last. The channels are its last axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ...graph.extent import Extent
from ..rewriting.operators import PRODUCTS, operator_name
from ..rewriting.views import permuted_constant, shape_of

MATMUL = "relax.matmul"
CAST = "relax.astype"
LAYOUTS = {
    "relax.nn.conv1d": ("NWC", "OWI"),
    "relax.nn.conv2d": ("NHWC", "OHWI"),
    "relax.nn.conv3d": ("NDHWC", "ODHWI"),
}
"""The layouts of data and weight of convolutions whose channels are last."""
CONVOLUTIONS = PRODUCTS & LAYOUTS.keys()

Values = Mapping[relax.Var, relax.Expr]


@dataclass(frozen=True)
class RowProduct:
    """A product by a constant weight.

    Attributes:
        call: the matmul or the convolution. Its first operand is the data.
        weight: the weight, ``<results, ..., channels>``, as the model holds it.
    """

    call: Any
    weight: np.ndarray

    def of_weight(self, weight: np.ndarray) -> relax.Call:
        """Return the product of the same data by another weight, which may have other results."""
        call, dtype = self.call, str(self.call.args[1].ty.dtype)
        if operator_name(call) == MATMUL:
            weight = weight.T
        constant = relax.const(np.ascontiguousarray(weight), dtype)
        return relax.Call(call.op, [call.args[0], constant], call.attrs, call.ty_args)


def row_product(value: relax.Expr | None, values: Values) -> RowProduct | None:
    """Return a value as a product by a constant weight of all channels, or None."""
    call: Any = value
    name = operator_name(call)
    if name == MATMUL:
        weight = permuted_constant(call.args[1], values)
        return RowProduct(call, weight.T) if weight is not None and weight.ndim == 2 else None
    if name not in LAYOUTS or int(call.attrs.groups) != 1 or not has_channels_last(call):
        return None
    weight = permuted_constant(call.args[1], values)
    return None if weight is None else RowProduct(call, weight)


def has_channels_last(convolution: relax.Call) -> bool:
    """Return whether the data of a convolution of :data:`LAYOUTS`, its weight and its result have channels last."""
    attrs = convolution.attrs
    layouts = str(attrs.data_layout), str(attrs.kernel_layout)
    return layouts == LAYOUTS[operator_name(convolution)] and str(attrs.out_layout) in ("", layouts[0])


def is_of_channels(array: np.ndarray, channels: Extent) -> bool:
    """Return whether an array is one number, or has one number for each channel of the last axis."""
    return bool(array.size == 1 or array.shape[-1] == array.size == channels)


def channel_constant(call: relax.Expr, at: relax.Expr, values: Values) -> np.ndarray | None:
    """Return the constant operand of a call that is one number, or has one number for each channel.

    None if the call has no such operand, or if the result has another shape than the operand ``at``.
    """
    others = [arg for arg in call.args if not arg.same_as(at)]
    shape, own = shape_of(call), shape_of(at)
    if len(call.args) != 2 or len(others) != 1 or not shape or own is None or list(own) != list(shape):
        return None
    array = permuted_constant(others[0], values)
    return array if array is not None and is_of_channels(array, shape[-1]) else None


def keeps_rows(call: relax.Expr) -> bool:
    """Return whether a reshape keeps the last axis, so that it divides or joins positions only."""
    before, after = shape_of(call.args[0]), shape_of(call)
    return bool(before) and bool(after) and before[-1] == after[-1] and isinstance(before[-1], int)  # type: ignore[index]
