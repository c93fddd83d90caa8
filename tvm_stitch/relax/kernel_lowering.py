# SPDX-License-Identifier: Apache-2.0
"""TVM's lowering of PrimFuncs for a CPU, without passes that leave our kernels as they are and take long over them.

``CompactBufferAllocation`` finds out for every access what a local buffer is read and written of; kernels of ours have
hundreds of accesses, and allocate what they use. ``RemoveNoOp`` proves statements to be without effect; we emit none.
``InjectVirtualThread``, ``InjectPermutedLayout`` and ``LoopPartition`` look for annotations and loops of GPUs and of
hints that our kernels do not have. What TVM schedules has them all.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from ..compute.emit import COMPUTE_ATTR
from ..interrupts import carrying
from ..pass_context import changed
from .stitch_ops import STITCH_ATTR

NAME = "tvm_stitch"
"""For ``tvm.relax.build(..., tir_pipeline=...)``."""
NEEDLESS = (
    "s_tir.CompactBufferAllocation",
    "s_tir.InjectPermutedLayout",
    "s_tir.LoopPartition",
    "s_tir.InjectVirtualThread",
    "tirx.RemoveNoOp",
)
"""Passes of TVM's pipeline that change nothing in a CPU kernel of ours, but for a few elements more in a buffer."""

ENTRY = "tirx.AnnotateEntryFunc"
"""The pass that looks at a module whole."""


def lowering() -> tuple[Any, Any, Any]:
    """The pipeline as TVM takes one: the pass, and what makes the last passes of a host and of a device."""
    default, host, device = tirx.get_tir_pipeline("default")

    @tvm.transform.module_pass(opt_level=0, name="LowerKernels")
    @carrying
    def lower(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        own = {gvar: func for gvar, func in mod.functions_items() if _is_own(func)}
        rest = {gvar: func for gvar, func in mod.functions_items() if gvar not in own}
        done = tvm.IRModule({}, attrs=mod.attrs)
        for part, needless in ((rest, ()), (own, NEEDLESS)):
            if part:
                # A module's only function is its entry, which one of several must not become.
                with changed(without=needless if len(part) == len(mod.functions) else (*needless, ENTRY)):
                    done.update(default(tvm.IRModule(part, attrs=mod.attrs)))
        return done

    return lower, host, device


def _is_own(func: Any) -> bool:
    return bool(func.attrs and (COMPUTE_ATTR in func.attrs or STITCH_ATTR in func.attrs))


register_tir_pipeline(NAME, lowering)
