# SPDX-License-Identifier: Apache-2.0
"""Packed weights: panels of neighbouring columns, one behind the other, as the micro-kernel reads them."""

from __future__ import annotations

import numpy as np


def packed_shape(columns: int, depth: int, width: int) -> tuple[int, int, int]:
    """Panels, depth, and columns of a panel, of a weight <depth, columns> in panels of ``width`` columns."""
    return -(-columns // width), depth, width


def packed(weight: np.ndarray, transposed: bool, width: int) -> np.ndarray:
    """A weight <depth, columns> (``transposed``: <columns, depth>) in panels, the last one padded with zeros."""
    rows = weight.T if transposed else weight
    depth, columns = rows.shape
    panels, _, _ = packed_shape(columns, depth, width)
    wide = np.zeros((depth, panels * width), weight.dtype)
    wide[:, :columns] = rows
    return np.ascontiguousarray(wide.reshape(depth, panels, width).transpose(1, 0, 2))
