# SPDX-License-Identifier: Apache-2.0
"""EmptyReductions: start a reduction before its loops, so that a reduction of nothing has a result.

Fault: TVM starts a reduction in the first iteration of its loops. If a symbolic extent is 0, no iteration runs, and
    the result is the former content of the memory.
Seen in: TVM 0.27.0
Input: the sum of the rows of (4, n) float32 with n = 0, as one PrimFunc, target llvm
Upstream: https://github.com/apache/tvm/issues/19578
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir

from ... import compat
from ...support.module_pass import module_pass
from ..prim_funcs import REDUCED, with_unscheduled


@module_pass
class EmptyReductions:
    """Begin reductions whose extents may be 0 before their loops."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_unscheduled(mod, _rewritten)


def _rewritten(_name: str, func: Any) -> Any:
    blocks = [realize.block for realize in _realizes(func)]
    if not any(map(_may_be_empty, blocks)):
        return func
    schedule = s_tir.Schedule(func)
    for name in [block.name_hint for block in blocks if _may_be_empty(block)]:
        block = schedule.get_sblock(name)
        reduced = _reduced_variables(schedule.mod["main"], name)
        loops = [loop for loop in schedule.get_loops(block) if schedule.get(loop).loop_var in reduced]
        if loops:
            schedule.decompose_reduction(block, loops[0])
    return schedule.mod["main"]


def _realizes(func: Any) -> list[Any]:
    realizes: list[Any] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlockRealize, realizes.append), order="pre")
    return realizes


def _may_be_empty(block: Any) -> bool:
    """Return True if a block reduces an extent that may be 0."""
    extents = [axis.dom.extent for axis in block.iter_vars if axis.iter_type == REDUCED]
    return block.init is not None and any((compat.int_value(extent) or 0) < 1 for extent in extents)


def _reduced_variables(func: Any, name: str) -> set[Any]:
    """Return the variables of the loops that a block's reduced axes are bound to."""
    (realize,) = [r for r in _realizes(func) if r.block.name_hint == name]
    axes = zip(realize.block.iter_vars, realize.iter_values)
    return set().union(*[compat.free_vars(value) for axis, value in axes if axis.iter_type == REDUCED])
