# SPDX-License-Identifier: Apache-2.0
"""Adaptive average pooling with slices of different sizes, as sums over slices of one size.

All slices are read in the greatest size, and elements beyond the end of a slice count as 0.

Fault: TVM's adaptive average pool loops over as many elements as a slice has, which depends on the slice's
    position. Such a loop nest is not a reduction: neither TVM's schedules nor stitching take it for one.
Seen in: TVM 0.27.0
Input: ``R.nn.adaptive_avg_pool2d(x, (6, 4))`` of (2, 3, 9, 11) float32
Upstream: none known
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...graph.dtype import compute_dtype
from ...relax.rewriting.views import shape_of

LAYOUTS = {
    "relax.nn.adaptive_avg_pool1d": "NCW",
    "relax.nn.adaptive_avg_pool2d": "NCHW",
    "relax.nn.adaptive_avg_pool3d": "NCDHW",
}
"""The operators that are rewritten, with the layout that each is rewritten in."""


def parts_of_one_size(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the average as sums over slices of one size, or the call itself if all slices already have one size.

    Each pooled axis gets an axis of its own for the elements of its slices. Averages of half types are rounded once.
    """
    (x,), attrs, emit = call.args, call.attrs, builder.emit
    layout = LAYOUTS[call.op.name]
    before, after = shape_of(x), shape_of(call)
    if before is None or after is None or str(attrs.layout) != layout or str(attrs.out_layout) != layout:
        return call
    pairs = list(zip(before[2:], after[2:]))
    if not all(isinstance(old, int) and isinstance(new, int) and old and new for old, new in pairs):
        return call
    if all(old % new == 0 for old, new in pairs):
        return call
    dtype, count = str(x.ty.dtype), np.ones([1] * len(pairs))
    for at, (old, new) in enumerate(pairs):
        begins, ends = np.arange(new) * old // new, -(-(np.arange(new) + 1) * old // new)
        positions = begins[:, None] + np.arange((ends - begins).max())
        axis = 2 + 2 * at
        x = emit(R.take(x, relax.const(np.minimum(positions, old - 1)), axis, mode="fast"))
        there = (positions < ends[:, None]).reshape([*positions.shape, *[1] * (len(x.ty.shape) - axis - 2)])
        if not there.all():
            x = emit(R.where(relax.const(there), x, relax.const(0, dtype)))
        count = count * (ends - begins).reshape([-1] + [1] * (len(pairs) - 1 - at))
    wide = compute_dtype(dtype)
    x = emit(R.astype(x, wide)) if wide != dtype else x
    total = emit(R.sum(x, [3 + 2 * at for at in range(len(pairs))]))
    mean = R.multiply(total, relax.const((1.0 / count).astype(wide)))
    return R.astype(emit(mean), dtype) if wide != dtype else mean


MENDED = dict.fromkeys(LAYOUTS, parts_of_one_size)
"""By operator, the function that makes a call stitchable. It returns the call itself if there is nothing to change."""
