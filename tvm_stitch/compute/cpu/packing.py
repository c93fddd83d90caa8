# SPDX-License-Identifier: Apache-2.0
"""Packed weights: panels of neighbouring columns, one behind the other, as the micro-kernel reads them.

For an instruction that multiplies a group of neighbours of the depth, a column has these beside each other.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ..contraction import Contraction
from ..convolution import Convolution


def packed_shape(product: Contraction | Convolution, width: int, group: int = 1) -> tuple[int, ...]:
    """Return the extents of a packed weight, in panels of ``width`` columns.

    Panels, steps of the depth, and elements of a step; a depthwise convolution's has places of the window, and
    channels. A step has ``group`` elements of each column.
    """
    if isinstance(product, Convolution):
        if product.is_depthwise:
            return product.depth, product.columns
        steps = product.depth // max(1, product.inputs) * -(-product.inputs // group)
        return product.groups * -(-product.outputs // width), steps, width * group
    return -(-int(product.columns) // width), -(-int(product.depth) // group), width * group


def layout(product: Contraction | Convolution) -> Hashable:
    """What a packed weight depends on beside its elements and the width of panels."""
    if isinstance(product, Convolution):
        return product.weight_order, product.groups, product.divided
    return product.transposed


def packed(product: Contraction | Convolution, weight: np.ndarray, width: int, group: int = 1) -> np.ndarray:
    """Return a weight as the template for a product reads it: the last panel, and the last group, padded with zeros."""
    if not isinstance(product, Convolution):
        rows = weight.reshape((product.columns, product.depth)).T if product.transposed else weight
        return _panels(_grouped(rows.reshape((1, product.depth, product.columns)), group), width)
    rows = _rows(product, weight)
    if product.is_depthwise:
        return np.ascontiguousarray(rows)
    places = product.depth // max(1, product.inputs)
    rows = _grouped(rows.reshape((places, product.inputs, product.columns)), group)
    return np.concatenate([_panels(each, width) for each in np.split(rows, product.groups, 1)])


def weight_axes(product: Convolution) -> list[int]:
    """The axes of a convolution's weight: places of the window, channels that are read, channels that are written."""
    channel, *others = product.weight_order
    axes = [axis for axis in (*others, channel) if axis >= 0]
    return axes + [axis for axis in range(len(product.weight.shape)) if axis not in axes]  # of one element


def _rows(product: Convolution, weight: np.ndarray) -> np.ndarray:
    """Return a convolution's weight <places of the window and channels that are read, channels that are written>.

    Behind each other for each phase, with the places that it sees.
    """
    phases = product.phases
    rows = weight.transpose(weight_axes(product)).reshape((*phases.kernel, product.inputs, product.columns))
    parts = [rows[np.ix_(*(taps.weights for taps in phase))] for phase in phases.each]
    return np.concatenate([part.reshape((-1, product.columns)) for part in parts])


def _grouped(rows: np.ndarray, group: int) -> np.ndarray:
    """<places, depth, columns> as <steps, columns, group>, the last step of a place filled up with zeros."""
    places, depth, columns = rows.shape
    steps = -(-depth // group)
    filled = np.zeros((places, steps * group, columns), rows.dtype)
    filled[:, :depth] = rows
    return filled.reshape((places * steps, group, columns)).transpose(0, 2, 1)


def _panels(rows: np.ndarray, width: int) -> np.ndarray:
    """<steps, columns, group> in panels of columns."""
    steps, columns, group = rows.shape
    panels = -(-columns // width)
    wide = np.zeros((steps, panels * width, group), rows.dtype)
    wide[:, :columns] = rows
    return np.ascontiguousarray(wide.reshape(steps, panels, width * group).transpose(1, 0, 2))
