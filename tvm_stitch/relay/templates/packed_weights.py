# SPDX-License-Identifier: Apache-2.0
"""Packed weights in Relay: the constant in panels, and the expression that unpacks it.

The body of a function of a packed weight unpacks the panels by operators, and is never compiled. If a layout
rewriter takes the function apart, the result is correct. TVM then folds constants, and has the weight again.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from tvm import relay

from ...compute.contraction import Contraction
from ...compute.convolution import Convolution
from ...compute.cpu.packing import layout, packed, weight_axes

Product = Contraction | Convolution


class PackedWeights:
    """Constants in panels, one for all products that share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, Hashable, int], Any] = {}

    def of(self, weight: Any, product: Product, width: int) -> Any:
        """Return a constant in panels of ``width`` columns."""
        key = weight, layout(product), width
        if key not in self._known:
            self._known[key] = relay.const(packed(product, weight.data.numpy(), width))
        return self._known[key]


def unpacked(panels: Any, product: Product, width: int) -> Any:
    """Return the weight of a product as an expression of its panels."""
    reduction, columns = int(product.reduction), int(product.columns)
    if not isinstance(product, Convolution):
        rows = _rows(panels, 1, reduction, columns, width)
        rows = relay.transpose(rows, (1, 0)) if product.transposed else rows
        return relay.reshape(rows, _shape(product.right))
    rows = panels if product.is_depthwise else _rows(panels, product.groups, reduction, columns, width)
    shape, axes = _shape(product.weight), weight_axes(product)
    return relay.transpose(relay.reshape(rows, [shape[axis] for axis in axes]), np.argsort(axes).tolist())


def _rows(panels: Any, groups: int, reduction: int, columns: int, width: int) -> Any:
    """Return the matrix <reduction, columns> from panels, in which the columns of each group are padded."""
    each = columns // groups
    wide = -(-each // width) * width
    panel_columns = relay.reshape(panels, (groups, wide // width, reduction, width))
    panel_columns = relay.reshape(relay.transpose(panel_columns, (2, 0, 1, 3)), (reduction, groups, wide))
    return relay.reshape(
        relay.strided_slice(panel_columns, [0, 0, 0], [reduction, groups, each]), (reduction, columns)
    )


def _shape(weight: Any) -> list[int]:
    return [int(extent) for extent in weight.shape]
