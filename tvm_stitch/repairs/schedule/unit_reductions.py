# SPDX-License-Identifier: Apache-2.0
"""UnitReductions: compute a reduction over one element without a reduction.

Fault: TVM's schedules drop loops of one iteration, and then inline the operators behind such a block into both of its
    statements. A bias after a matmul with a reduction (K) dimension of 1 is added twice.
Seen in: TVM 0.27.0
Input: ``R.nn.relu(R.add(R.matmul(x, w), bias))`` of (7, 1), (1, 5) and (5,) float32, target cuda
Upstream: none known
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ... import compat
from ...graph.dtype import HALF
from ...support.module_pass import module_pass
from ..prim_funcs import REDUCED, SPATIAL, with_body, with_unscheduled
from ..tir.opaque import as_c_type


@module_pass
class UnitReductions:
    """Make blocks that reduce only extents of 1 compute their one element, ``init + x``, without a loop around it.

    TVM 0.27's schedules drop loops of one iteration, and then inline the operators after such a block into both of
    its statements. A bias after a sum of one product is added twice. This pass runs before those schedules.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_unscheduled(mod, _rewritten)


def _rewritten(_name: str, func: Any) -> Any:
    return with_body(func, tvm_ffi.structural_map(func.body, (s_tir.SBlock, _computed), order="post"))


def _computed(block: Any) -> Any:
    """Return the block with its element in place of a reduction of one value, or any other block as it is."""
    start, step = block.init, block.body
    if not (isinstance(start, tirx.BufferStore) and isinstance(step, tirx.BufferStore)):
        return block
    if any(compat.int_value(v.dom.extent) != 1 for v in block.iter_vars if v.iter_type == REDUCED):
        return block
    own = [load for load in compat.loads_in(step) if compat.load_buffer(load).same_as(start.buffer)]
    if not all(_is_element(access, start) for access in own) or not _is_element(step, start):
        return block

    def started(load: Any) -> Any:
        return start.value if compat.load_buffer(load).same_as(start.buffer) else load

    body = tvm_ffi.structural_map(step, (tvm.ir.TensorLoad, started), order="post")
    iter_vars = [
        tirx.IterVar(v.dom, v.var, SPATIAL, v.thread_tag) if v.iter_type == REDUCED else v
        for v in block.iter_vars
    ]
    return compat.changed_block(
        block,
        iter_vars=iter_vars,
        reads=[region for region in block.reads if not region.source.same_as(start.buffer)],
        body=tirx.BufferStore(body.buffer, _as_is(body.value), body.indices),
        init=None,
    )


def _as_is(value: Any) -> Any:
    """Return a value that the simplifier does not merge with its readers.

    It would fold ``x - (0 + x)`` to 0, also for a NaN.
    """
    dtype = compat.dtype_of(value)
    if dtype in HALF:
        return tirx.Cast(dtype, as_c_type(tirx.Cast("float32", value), "float32"))
    return as_c_type(value, dtype) if dtype in ("float32", "float64") else value


def _is_element(access: Any, start: Any) -> bool:
    """Return True if a load or a store accesses the element that ``start`` writes."""
    same = len(access.indices) == len(start.indices)
    return same and all(map(compat.structural_equal, access.indices, start.indices))
