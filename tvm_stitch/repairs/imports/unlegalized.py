# SPDX-License-Identifier: Apache-2.0
"""Operators without a legalization in TVM, written as other operators.

A fused multiply-add becomes a product and a sum. A pixel shuffle becomes a transposition between two reshapes.

Fault: TVM has no legalization of ``ewise_fma``, and that of ``nn.pixel_shuffle`` calls a function that TOPI does not
    export. It compiles neither.
Seen in: TVM 0.27.0
Input: ``R.nn.pixel_shuffle(x, 2)`` of (1, 4, 3, 5) float32, any target
Upstream: none known
"""

from __future__ import annotations

from typing import Any

from tvm.relax import op as R

from ...graph.extent import as_expr
from ...relax.rewriting.views import shape_of


def _multiply_add(builder: Any, call: Any) -> Any:
    """Return the sum of the third operand and the product of the other two."""
    left, right, addend = call.args
    return R.add(builder.emit(R.multiply(left, right)), addend)


def _pixel_shuffle(builder: Any, call: Any) -> Any:
    """Return an image (..., C * r * r, H, W) as (..., C, H * r, W * r), or the call if a shape is unknown."""
    (image,) = call.args
    shape, result = shape_of(image), shape_of(call)
    if shape is None or result is None:
        return call
    factor, rank = int(call.attrs.upscale_factor), len(shape)
    *outer, _, height, width = shape
    channels = result[rank - 3]
    split = [*outer, channels, factor, factor, height, width]
    parts = builder.emit(R.reshape(image, [as_expr(extent) for extent in split]))
    order = [*range(rank - 2), rank, rank - 2, rank + 1, rank - 1]
    spread = builder.emit(R.permute_dims(parts, order))
    return R.reshape(spread, [as_expr(extent) for extent in result])


MENDED = {"relax.ewise_fma": _multiply_add, "relax.nn.pixel_shuffle": _pixel_shuffle}
"""For ``MendImports``."""
