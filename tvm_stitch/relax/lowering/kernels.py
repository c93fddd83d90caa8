# SPDX-License-Identifier: Apache-2.0
"""TVM's lowering of PrimFuncs, without passes that leave our kernels as they are and take long over them.

``CompactBufferAllocation`` finds out for every access what a local buffer is read and written of; kernels of ours have
hundreds of accesses, and allocate what they use. ``RemoveNoOp`` proves statements to be without effect; we emit none.
``InjectVirtualThread``, ``InjectPermutedLayout`` and ``LoopPartition`` look for annotations and loops that TVM's
schedules make and our kernels do not have. ``CommonSubexprElim`` takes long over convolutions, and LLVM does the same
again; so does what ``HoistIfThenElse`` takes out of loops, and ``RenormalizeSplitPattern`` looks in indices for what
TVM's schedules leave. ``FlattenBuffer`` simplifies each index by the ranges of all loops around it, once more, also
where nothing is left to flatten. What TVM schedules has them all.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from ... import compat
from ...compute.cpu.emit import COMPUTE_ATTR
from ...support.interrupts import carrying
from ...support.pass_context import changed
from ..stitch.stitch_ops import STITCH_ATTR
from .argument_checks import with_shared_checks
from .separate_tasks import with_tasks_apart

NAME = "tvm_stitch"
"""For ``tvm.relax.build(..., tir_pipeline=...)``."""
NEEDLESS = (
    "s_tir.CompactBufferAllocation",
    "s_tir.InjectPermutedLayout",
    "s_tir.LoopPartition",
    "s_tir.InjectVirtualThread",
    "tirx.RemoveNoOp",
)
"""Passes of TVM's pipeline that change nothing in a kernel of ours, but for a few elements more in a buffer."""
NEEDLESS_ON_CPU = (
    *NEEDLESS,
    "tirx.CommonSubexprElim",
    "s_tir.HoistIfThenElse",
    "s_tir.RenormalizeSplitPattern",
)
"""The same for LLVM, which finds common expressions and conditions of whole loops itself: of kernels of known sizes it
makes the same instructions without these passes. NVIDIA's compiler gets them named: it chooses registers by what it
sees."""

NEEDLESS_IF_FLAT = (*NEEDLESS_ON_CPU, "tirx.FlattenBuffer")
"""The same for kernels that read and write buffers of one dimension alone, as matrix products and attention do."""

HOST_LEVEL = 1
"""The host of a GPU checks arguments and launches kernels. A kernel of a hundred arguments has thousands of checks,
over which LLVM takes three times as long at its usual level as at this one, for code of the same length."""

ENTRY = "tirx.AnnotateEntryFunc"
"""The pass that looks at a module whole."""


def lowering() -> tuple[Any, Any, Any]:
    """The pipeline as TVM takes one: the pass, and what makes the last passes of a host and of a device."""
    default, host, device = tirx.get_tir_pipeline("default")

    @tvm.transform.module_pass(opt_level=0, name="LowerKernels")
    @carrying
    def lower(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        parts: dict[tuple[str, ...], dict[Any, Any]] = {}
        for gvar, func in mod.functions_items():
            parts.setdefault(_needless(func), {})[gvar] = func
        done: dict[Any, Any] = {}
        for needless, part in parts.items():
            # A module's only function is its entry, which one of several must not become.
            with changed(without=needless if len(part) == len(mod.functions) else (*needless, ENTRY)):
                found = default(tvm.IRModule(part, attrs=mod.attrs))
            made = dict(found.functions_items())
            if not {gvar.name_hint for gvar in done}.isdisjoint(gvar.name_hint for gvar in made):
                # A device function is called like another: TVM tells those of a module apart.
                return _finished(default(mod))
            done |= made
        return _finished(tvm.IRModule(done, attrs=mod.attrs))

    return lower, host, device


def _finished(mod: tvm.IRModule) -> tvm.IRModule:
    """What is done to a lowered module behind TVM's passes."""
    return with_tasks_apart(with_shared_checks(mod))


def with_quick_host(target: Any) -> Any:
    """The target, its host's code optimized by LLVM at the level ``HOST_LEVEL`` if nobody asked for one."""
    host = target.host
    if "gpu" not in target.keys or host is None or host.kind.name != "llvm" or "opt-level" in host.attrs:
        return target
    return target.with_host(tvm.target.Target({**dict(host.export()), "opt-level": HOST_LEVEL}))


def _needless(func: Any) -> tuple[str, ...]:
    """The passes that a function needs not.

    TVM's build binds targets before it lowers; a function without one may be for any.
    """
    if not func.attrs or (COMPUTE_ATTR not in func.attrs and STITCH_ATTR not in func.attrs):
        return ()
    target = func.attrs.get("target")
    if target is None or target.kind.name != "llvm":
        return NEEDLESS
    return NEEDLESS_IF_FLAT if COMPUTE_ATTR in func.attrs and _is_flat(func) else NEEDLESS_ON_CPU


def _is_flat(func: Any) -> bool:
    """Whether all that a function reads and writes is of one dimension, and in memory as it is in the kernel.

    A function and those that it calls are lowered together: no such function calls one, or is called by one.
    """
    if "global_symbol" not in func.attrs:
        return False
    found: list[Any] = []
    called: list[Any] = []
    tvm_ffi.structural_walk(
        func.body,
        [
            (tvm.ir.TensorLoad, lambda load: found.append(load.source)),
            (tirx.BufferStore, lambda store: found.append(store.buffer)),
            (tvm.ir.GlobalVar, called.append),
        ],
    )
    return not called and all(
        len(buffer.shape) == 1 and not compat.buffer_dtype(buffer).startswith("bool") for buffer in found
    )


register_tir_pipeline(NAME, lowering)
