# SPDX-License-Identifier: Apache-2.0
"""Keep the marks of stitch ops through TVM's fusion.

``MergeStitchOps`` runs FuseTIR and marks the PrimFuncs that it makes. ``UnmarkEpilogues`` removes the marks of
epilogues.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from ...support.module_pass import module_pass
from ..rewriting.operators import OPAQUE_PATTERN
from .stitch_ops import STITCH_ATTR

EPILOGUE_ATTR = "tvm_stitch.epilogue"
"""Marks a compute-intensive function merged with its epilogue, until TVM has fused the remaining operators."""


@module_pass
class MergeStitchOps:
    """Merge each Primitive function into one PrimFunc, and keep FuseOps from fusing anything into a stitch op."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Run FuseTIR and restore the marks that it drops."""
        marked, merged = set(), set()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function) and func.attrs and "Primitive" in func.attrs:
                merged.add(gvar.name_hint)
                if STITCH_ATTR in func.attrs:
                    marked.add(gvar.name_hint)
        mod = relax.transform.FuseTIR()(mod)
        for gvar, func in list(mod.functions_items()):
            if isinstance(func, tirx.PrimFunc) and gvar.name_hint in merged:
                func = func.with_attr("op_pattern", OPAQUE_PATTERN)
                mark = STITCH_ATTR if gvar.name_hint in marked else EPILOGUE_ATTR
                mod.update_func(gvar, func.with_attr(mark, True))
        return mod


@module_pass
class UnmarkEpilogues:
    """Make functions with epilogues equal to the results of TVM's fusion, so that tuning records of those match."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Drop the attributes that ``MergeStitchOps`` gave them."""
        for gvar, func in list(mod.functions_items()):
            if isinstance(func, tirx.PrimFunc) and func.attrs and EPILOGUE_ATTR in func.attrs:
                mod.update_func(gvar, func.without_attr(EPILOGUE_ATTR).without_attr("op_pattern"))
        return mod
