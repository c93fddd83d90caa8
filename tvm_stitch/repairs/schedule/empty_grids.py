# SPDX-License-Identifier: Apache-2.0
"""EmptyGrids: threads of an empty grid leave before they touch memory.

Fault: TVM's runtime launches one block if a symbolic extent makes the grid empty. Kernels of dlight then access
    tensors without elements, and that illegal access ends the process.
Seen in: TVM 0.27.0
Input: ``R.sum(x, 1)`` of (n, m, 16) float32 with n = 0, target cuda
Upstream: https://github.com/apache/tvm/issues/20278
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.script import tirx as T

from ... import compat
from ...support.module_pass import module_pass
from ..prim_funcs import with_scheduled
from ..tir.opaque import as_c_type
from ..tir.zero_divisors import is_positive


@module_pass
class EmptyGrids:
    """Let the threads of TVM's schedules return if the grid is empty. Stitched kernels already do so."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite every PrimFunc that is scheduled and whose number of blocks may be 0."""
        return with_scheduled(mod, (tirx.For, _guarded), (tirx.AttrStmt, _guarded_launch))


def _guarded(loop: Any) -> Any:
    """Add the check to a loop whose iterations are blocks."""
    if not _may_be_empty(loop.thread_binding, loop.extent):
        return loop
    body = _unless_empty(loop.extent, loop.body)
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations
    )


def _guarded_launch(attr: Any) -> Any:
    """Add the check to a launch in a kernel that TVM writes by hand, such as a scan or a sort."""
    if attr.attr_key != "thread_extent" or not _may_be_empty(attr.node, attr.value):
        return attr
    return tirx.AttrStmt(attr.node, attr.attr_key, attr.value, _unless_empty(attr.value, attr.body))


def _may_be_empty(axis: Any, extent: Any) -> bool:
    """Return True for an axis of blocks, or None, with an extent that may be 0."""
    return axis is not None and axis.thread_tag.startswith("blockIdx.") and not is_positive(extent)


def _unless_empty(extent: Any, body: Any) -> Any:
    dtype = compat.dtype_of(extent)
    # The simplifier assumes that the extent of a loop is positive inside the loop.
    idle = tirx.LE(as_c_type(extent, dtype), compat.const(0, dtype))
    return tirx.SeqStmt([tirx.IfThenElse(idle, tirx.Evaluate(T.thread_return()), None), body])
