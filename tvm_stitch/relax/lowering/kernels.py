# SPDX-License-Identifier: Apache-2.0
"""TVM's lowering of PrimFuncs, without passes that do not change stitched kernels and take long over them.

TVM runs all of these passes on the functions that it schedules. Stitched kernels skip them for these reasons:

- ``CompactBufferAllocation`` analyses for every access which elements of a local buffer it reads and writes. Stitched
  kernels have hundreds of accesses, and allocate no more than they use.
- ``RemoveNoOp`` proves that statements have no effect. In stitched kernels these are loads without a use, which
  compilers drop.
- ``InjectVirtualThread``, ``InjectPermutedLayout`` and ``LoopPartition`` look for annotations and loops that only
  TVM's schedules make.
- ``CommonSubexprElim`` takes long over convolutions, and LLVM does the same again.
- LLVM also takes the conditions out of loops that ``HoistIfThenElse`` takes out.
- ``RenormalizeSplitPattern`` looks in indices for the remains of TVM's schedules.
- ``FlattenBuffer`` simplifies each index once more by the ranges of all loops around it, even if nothing is left to
  flatten.
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
from .identifiers import check_identifiers
from .separate_tasks import with_tasks_apart

NAME = "tvm_stitch"
"""Name of the pipeline for ``tvm.relax.build(..., tir_pipeline=...)``."""
NEEDLESS = (
    "s_tir.CompactBufferAllocation",
    "s_tir.InjectPermutedLayout",
    "s_tir.LoopPartition",
    "s_tir.InjectVirtualThread",
    "tirx.RemoveNoOp",
)
"""Passes of TVM's pipeline that do not change a stitched kernel, except for a few more elements in a buffer."""
NEEDLESS_ON_CPU = (
    *NEEDLESS,
    "tirx.CommonSubexprElim",
    "s_tir.HoistIfThenElse",
    "s_tir.RenormalizeSplitPattern",
)
"""Needless passes for LLVM, which finds common expressions and conditions of whole loops itself.

For kernels of known sizes, LLVM makes the same instructions without these passes. NVIDIA's compiler gets the common
expressions as variables, because it chooses registers by the code that it sees.
"""

NEEDLESS_IF_FLAT = (*NEEDLESS_ON_CPU, "tirx.FlattenBuffer")
"""Needless passes for kernels whose buffers all have one dimension, as matmuls and attention have."""

HOST_LEVEL = 1
"""LLVM's optimization level for the host of a GPU, which checks arguments and launches kernels.

A kernel of a hundred arguments has thousands of checks. LLVM takes three times as long over them at its usual level
as at this one, for code of the same length.
"""

ENTRY = "tirx.AnnotateEntryFunc"
"""The pass that needs the whole module."""


def lowering() -> tuple[Any, Any, Any]:
    """Return the pipeline as TVM takes one.

    It consists of the pass, and of the functions that make the last passes of a host and of a device.
    """
    default, host, device = tirx.get_tir_pipeline("default")

    @tvm.transform.module_pass(opt_level=0, name="LowerKernels")
    @carrying
    def lower(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        parts: dict[tuple[str, ...], dict[Any, Any]] = {}
        for gvar, func in mod.functions_items():
            parts.setdefault(_needless(func), {})[gvar] = func
        done: dict[Any, Any] = {}
        for needless, part in parts.items():
            # A module's only function becomes its entry. A function of several must not.
            with changed(without=needless if len(part) == len(mod.functions) else (*needless, ENTRY)):
                lowered = default(tvm.IRModule(part, attrs=mod.attrs))
            functions = dict(lowered.functions_items())
            if not {gvar.name_hint for gvar in done}.isdisjoint(gvar.name_hint for gvar in functions):
                # Two device functions have the same name. TVM renames them only within one module.
                return _finished(default(mod))
            done |= functions
        return _finished(tvm.IRModule(done, attrs=mod.attrs))

    return lower, host, device


def _finished(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a lowered module after the steps that follow TVM's passes."""
    return with_tasks_apart(with_shared_checks(check_identifiers(mod)))


def with_quick_host(target: tvm.target.Target) -> tvm.target.Target:
    """Return the target with LLVM's level ``HOST_LEVEL`` for its host's code, if the user asked for no level."""
    host = target.host
    if "gpu" not in target.keys or host is None or host.kind.name != "llvm" or "opt-level" in host.attrs:
        return target
    return target.with_host(tvm.target.Target({**dict(host.export()), "opt-level": HOST_LEVEL}))


def _needless(func: tirx.PrimFunc) -> tuple[str, ...]:
    """Return the passes that a function does not need.

    TVM's build binds targets before it lowers. A function without a target may be for any.
    """
    if not func.attrs or (COMPUTE_ATTR not in func.attrs and STITCH_ATTR not in func.attrs):
        return ()
    target = func.attrs.get("target")
    if target is None or target.kind.name != "llvm":
        return NEEDLESS
    return NEEDLESS_IF_FLAT if COMPUTE_ATTR in func.attrs and _is_flat(func) else NEEDLESS_ON_CPU


def _is_flat(func: tirx.PrimFunc) -> bool:
    """Return True if all buffers that a function reads and writes have one dimension, and the same dtype in memory.

    Booleans have another dtype in memory. A function and those that it calls are lowered together, so a function that
    calls one or is called is not flat.
    """
    if "global_symbol" not in func.attrs:
        return False
    shaped: list[Any] = []
    called: list[Any] = []
    tvm_ffi.structural_walk(
        func.body,
        [
            (tvm.ir.TensorLoad, lambda load: shaped.append(load.source)),
            (tirx.BufferStore, lambda store: shaped.append(store.buffer)),
            (tvm.ir.GlobalVar, called.append),
        ],
    )
    return not called and all(
        len(buffer.shape) == 1 and not compat.buffer_dtype(buffer).startswith("bool") for buffer in shaped
    )


register_tir_pipeline(NAME, lowering)
