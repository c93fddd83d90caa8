# SPDX-License-Identifier: Apache-2.0
"""MergeStitchOps: FuseTIR, carrying the mark of stitch ops over to the PrimFuncs it makes."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from .stitch_ops import STITCH_ATTR

OPAQUE_PATTERN = 8


@tvm.transform.module_pass(opt_level=0, name="MergeStitchOps")
class MergeStitchOps:
    """Merge each Primitive function into one PrimFunc, and keep FuseOps from fusing anything into a stitch op."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Run FuseTIR and restore the marks that it drops."""
        marked, merged = set(), set()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function) and func.attrs and "Primitive" in func.attrs:
                merged.add(gvar.name_hint)
                if STITCH_ATTR in func.attrs:
                    marked.add(gvar.name_hint)
        mod = relax.transform.FuseTIR()(mod)
        updates = {}
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and gvar.name_hint in merged:
                func = func.with_attr("op_pattern", OPAQUE_PATTERN)
                if gvar.name_hint in marked:
                    func = func.with_attr(STITCH_ATTR, True)
                updates[gvar] = func
        for gvar, func in updates.items():
            mod.update_func(gvar, func)
        return mod
