# SPDX-License-Identifier: Apache-2.0
"""Operators that read or write slices at coordinates: ``GatherND`` and ``ScatterND``.

TVM's converters count negative coordinates from the end too. They do not check constant coordinates against extents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .....relax.rewriting.extents import require_extent
from ..node import ANY, Conversion, Node, Unsupported, shape_of


def _natural(node: Node, first: int) -> relax.Expr:
    """Return coordinates counted from the start. A run checks that symbolic extents hold constant ones.

    Args:
        node: reads the data as input 0 and coordinates as input 1, one slice's in a row of the last dimension.
        first: the data's dimension that the first coordinate of a row counts along.

    Raises:
        Unsupported: if the data has too few dimensions, or a constant coordinate lies outside of an extent.
    """
    indices, known = node.tensor(1), node.constant(1)
    count = shape_of(indices)[-1]
    dims = node.shape(0)[first:]
    if not isinstance(count, int) or not 0 < count <= len(dims):
        raise Unsupported(f"its indices have {count} coordinates for {len(dims)} dimensions of the data")
    extents = dims[:count]
    if known is not None and known.size:
        for at, extent in enumerate(extents):
            low, high = int(known[..., at].min()), int(known[..., at].max())
            if isinstance(extent, int) and not -extent <= low <= high < extent:
                raise Unsupported(
                    f"an index of {low}..{high} lies outside of the {extent} elements of axis {first + at}"
                )
            require_extent(node.bb, extent, max(high + 1, -low))
    if all(isinstance(extent, int) for extent in extents):
        sizes: relax.Expr = relax.const(np.array(extents, "int64"), "int64")
        if known is not None:
            return relax.const(np.where(known < 0, known + np.array(extents), known).astype("int64"), "int64")
    else:
        sizes = node.emit(relax.op.shape_to_tensor(relax.ShapeExpr(extents)))
    negative = node.emit(relax.op.less(indices, relax.const(0, "int64")))
    return node.emit(relax.op.where(negative, node.emit(relax.op.add(indices, sizes)), indices))


def _gather_nd(node: Node) -> relax.Expr:
    batch = int(node.attributes.get("batch_dims", 0))
    return relax.op.gather_nd(node.tensor(0), _natural(node, batch), batch)


def _scatter_nd(node: Node) -> relax.Expr:
    reduction: Any = str(node.attributes.get("reduction", "none"))
    how = "update" if reduction == "none" else reduction
    return relax.op.scatter_nd(node.tensor(0), _natural(node, 0), node.tensor(2), how)


CONVERSIONS = {
    ("", "GatherND"): Conversion(_gather_nd, {"batch_dims": ANY}),
    ("", "ScatterND"): Conversion(_scatter_nd, {"reduction": ("none", "add", "mul", "min", "max")}),
}
