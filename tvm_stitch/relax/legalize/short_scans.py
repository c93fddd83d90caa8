# SPDX-License-Identifier: Apache-2.0
"""ShortScans: compute running sums and products of short rows as reductions, which can be stitched.

Each result reduces the elements up to its own position. The number of operations is the square of a row's length. No
step waits for the one before, and the operators around are in the same kernel. TVM's scan of a row is serial on a
CPU, and takes several kernels on a GPU.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import relax, te, tirx

from ...device import DeviceModel
from ...graph.extent import product
from ...support.module_pass import module_pass
from ..rewriting.calls import with_calls
from ..rewriting.operators import operator_name
from ..rewriting.views import shape_of

_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="prod")
SCANS = {"relax.cumsum": (te.sum, 0), "relax.cumprod": (_PRODUCT, 1)}
"""Operators, each with the reducer of its elements and the reducer's identity."""


@module_pass
class ShortScans:
    """Rewrite ``cumsum`` and ``cumprod`` as reductions. Runs before TVM chooses kernels for scans.

    Args:
        device: its choices limit the length of a row, which may be longer on a GPU than on a CPU.
    """

    def __init__(self, device: DeviceModel):
        choices = device.choices
        self.longest = choices.gpu_scan_as_sums if device.is_gpu else choices.cpu_scan_as_sums

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_calls(
            mod, SCANS, partial(_as_reduction, self.longest), why="a reduction can be stitched, a scan cannot"
        )


def _as_reduction(longest: int, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape, dtype = shape_of(call.args[0]), str(call.ty.dtype)
    if shape is None or not shape or dtype == "bool":
        return call
    axis = call.attrs.axis
    length = product(shape) if axis is None else shape[int(axis) % len(shape)]
    if not isinstance(length, int) or not 0 < length <= longest:
        return call
    x = call.args[0]
    if axis is None:
        x, axis = builder.emit(relax.op.flatten(x)), 0
    hint = operator_name(call).removeprefix("relax.")
    return builder.call_te(
        scanned, x, int(axis), bool(call.attrs.exclusive), hint, dtype, primfunc_name_hint=hint
    )


def scanned(x: te.Tensor, axis: int, exclusive: bool, kind: str, dtype: str) -> te.Tensor:
    """Compute the running sums or products along an axis, in float32 for half types.

    Args:
        x: a tensor of numbers or booleans.
        axis: the axis, of static extent.
        exclusive: whether an element's own value is left out.
        kind: ``"cumsum"`` or ``"cumprod"``.
        dtype: the result's dtype.

    Returns:
        A tensor of the shape of ``x``.
    """
    axis %= len(x.shape)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    combine, identity = SCANS[f"relax.{kind}"]
    before = te.reduce_axis((0, x.shape[axis]), "before")

    def reduced(*index: Any) -> Any:
        own = [before if a == axis else i for a, i in enumerate(index)]
        taken = before < index[axis] if exclusive else before <= index[axis]
        return combine(tirx.Select(taken, x(*own).astype(wide), tirx.const(identity, wide)), before)

    scan = te.compute(x.shape, reduced, name=kind)
    return scan if wide == dtype else te.compute(x.shape, lambda *i: scan(*i).astype(dtype), name="narrowed")
