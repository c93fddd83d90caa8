# SPDX-License-Identifier: Apache-2.0
"""Packed weights: panels of neighbouring columns, one behind the other, as the micro-kernel reads them."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from .contraction import Contraction
from .convolution import Convolution


def packed_shape(product: Contraction | Convolution, width: int) -> tuple[int, ...]:
    """The extents of a packed weight, in panels of ``width`` columns.

    Panels, depth, and columns of a panel; a depthwise convolution's has places of the window, and channels.
    """
    if isinstance(product, Convolution):
        if product.is_depthwise:
            return product.depth, product.columns
        return product.groups * -(-product.outputs // width), product.depth, width
    return -(-int(product.columns) // width), int(product.depth), width


def layout(product: Contraction | Convolution) -> Hashable:
    """What a packed weight depends on beside its elements and the width of panels."""
    if isinstance(product, Convolution):
        return product.weight_order, product.groups, product.divided
    return product.transposed


def packed(product: Contraction | Convolution, weight: np.ndarray, width: int) -> np.ndarray:
    """A weight as the template for a product reads it: the last panel of each group padded with zeros."""
    if not isinstance(product, Convolution):
        rows = weight.reshape((product.columns, product.depth)).T if product.transposed else weight
        return _panels(rows.reshape((product.depth, product.columns)), width)
    rows = _rows(product, weight)
    if product.is_depthwise:
        return np.ascontiguousarray(rows)
    groups = np.split(rows, product.groups, 1)
    return np.concatenate([_panels(group, width) for group in groups])


def weight_axes(product: Convolution) -> list[int]:
    """The axes of a convolution's weight: places of the window, channels that are read, channels that are written."""
    channel, *others = product.weight_order
    axes = [axis for axis in (*others, channel) if axis >= 0]
    return axes + [axis for axis in range(len(product.weight.shape)) if axis not in axes]  # of one element


def _rows(product: Convolution, weight: np.ndarray) -> np.ndarray:
    """A convolution's weight <places of the window and channels that are read, channels that are written>.

    Behind each other for each phase, with the places that it sees.
    """
    phases = product.phases
    rows = weight.transpose(weight_axes(product)).reshape((*phases.kernel, product.inputs, product.columns))
    parts = [rows[np.ix_(*(taps.weights for taps in phase))] for phase in phases.each]
    return np.concatenate([part.reshape((-1, product.columns)) for part in parts])


def _panels(rows: np.ndarray, width: int) -> np.ndarray:
    """A matrix <depth, columns> in panels."""
    depth, columns = rows.shape
    panels = -(-columns // width)
    wide = np.zeros((depth, panels * width), rows.dtype)
    wide[:, :columns] = rows
    return np.ascontiguousarray(wide.reshape(depth, panels, width).transpose(1, 0, 2))
