# SPDX-License-Identifier: Apache-2.0
"""Packed weights: contiguous panels of neighbouring columns, in the micro-kernel's reading order.

For an instruction that multiplies groups of the reduction dimension, a group of each column is contiguous.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ..contraction import Contraction
from ..convolution import Convolution


def packed_shape(
    product: Contraction | Convolution, width: int, group: int = 1, at_once: int = 1
) -> tuple[int, ...]:
    """Return the extents of a packed weight, in panels of ``width`` columns.

    They are panels, steps of the reduction, and elements of a step. A step has ``group`` elements of each column. The
    steps of a matrix product are a multiple of ``at_once``. A depthwise convolution's weight has positions of the
    window, and channels.
    """
    if isinstance(product, Convolution):
        if product.is_depthwise:
            return product.reduction, product.columns
        steps = product.reduction // max(1, product.inputs) * -(-product.inputs // group)
        return product.groups * -(-product.outputs // width), steps, width * group
    steps = -(-int(product.reduction) // (group * at_once)) * at_once
    return -(-int(product.columns) // width), steps, width * group


def layout(product: Contraction | Convolution) -> Hashable:
    """Return a key of the packed layout, without the elements and the width of panels."""
    if isinstance(product, Convolution):
        return product.weight_order, product.groups, product.divided
    return product.transposed


def packed(
    product: Contraction | Convolution, weight: np.ndarray, width: int, group: int = 1, at_once: int = 1
) -> np.ndarray:
    """Return a weight in the layout of a product's template (see :func:`packed_shape`). The last panel and the last
    steps are padded with zeros.
    """
    if not isinstance(product, Convolution):
        rows = weight.reshape((product.columns, product.reduction)).T if product.transposed else weight
        rows = rows.reshape((1, product.reduction, product.columns))
        return _panels(_grouped(rows, group, at_once), width)
    rows = _rows(product, weight)
    if product.is_depthwise:
        return np.ascontiguousarray(rows)
    positions = product.reduction // max(1, product.inputs)
    rows = _grouped(rows.reshape((positions, product.inputs, product.columns)), group)
    return np.concatenate([_panels(each, width) for each in np.split(rows, product.groups, 1)])


def weight_axes(product: Convolution) -> list[int]:
    """Return the axes of a convolution's weight in the order: window, input channels, output channels."""
    channel, *others = product.weight_order
    axes = [axis for axis in (*others, channel) if axis >= 0]
    return axes + [axis for axis in range(len(product.weight.shape)) if axis not in axes]  # of one element


def _rows(product: Convolution, weight: np.ndarray) -> np.ndarray:
    """Return a convolution's weight as a matrix <window and input channels, output channels>.

    The matrices of all residue classes follow each other, each with the window elements that the class reads.
    """
    residues = product.residues
    rows = weight.transpose(weight_axes(product)).reshape((*residues.kernel, product.inputs, product.columns))
    slices = [rows[np.ix_(*(taps.weights for taps in residue))] for residue in residues.each]
    return np.concatenate([each.reshape((-1, product.columns)) for each in slices])


def _grouped(rows: np.ndarray, group: int, at_once: int = 1) -> np.ndarray:
    """Return <positions, reduction, columns> as <steps, columns, group>, with zeros in each position's last steps."""
    positions, reduction, columns = rows.shape
    steps = -(-reduction // (group * at_once)) * at_once
    filled = np.zeros((positions, steps * group, columns), rows.dtype)
    filled[:, :reduction] = rows
    return filled.reshape((positions * steps, group, columns)).transpose(0, 2, 1)


def _panels(rows: np.ndarray, width: int) -> np.ndarray:
    """Return <steps, columns, group> as contiguous panels of columns."""
    steps, columns, group = rows.shape
    panels = -(-columns // width)
    wide = np.zeros((steps, panels * width, group), rows.dtype)
    wide[:, :columns] = rows
    return np.ascontiguousarray(wide.reshape(steps, panels, width * group).transpose(1, 0, 2))
