# SPDX-License-Identifier: Apache-2.0
"""LaunchRegions: let this package's launcher run the parallel regions of a module, instead of TVM's thread pool.

TVM turns a parallel loop into a function that does a slice of it, and passes that function to a launcher. The launcher
does not learn the number of iterations, so it is called before each loop with that number. Regions with barriers are
announced by 0, and their slices run at the same time.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ... import compat
from ...compute.cpu.launch import launcher
from ...config import StitchConfig
from ...repairs.prim_funcs import with_body
from ...support.module_pass import module_pass
from .embed_libraries import ATTRIBUTE

GROUP = "pragma_parallel_launch_point"
"""TVM's attribute around a region of several parallel loops, between which its slices meet."""


@module_pass
class LaunchRegions:
    """Call the launcher in parallel regions, and attach its code to the executable.

    Loops that TVM schedules are included. Nothing changes if the options or the target ask for TVM's pool, or if no
    C++ compiler is installed. The pass runs after all others that change loops.

    Args:
        target: the target that the module is compiled for.
        config: stitching options.
    """

    def __init__(self, target: tvm.target.Target, config: StitchConfig):
        self.target, self.config = target, config

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the PrimFuncs with parallel regions."""
        if launcher.why_not(self.target, self.config):
            return mod
        done = {}
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                body = _announced(func.body)
                if not body.same_as(func.body):
                    done[gvar] = with_body(func, _attribute("pragma_import_llvm", launcher.SOURCE, body))
        if not done:
            return mod
        mod = mod.clone()
        for gvar, func in done.items():
            mod.update_func(gvar, func)
        attached = list((mod.attrs or {}).get(ATTRIBUTE, []))
        return mod.with_attr(ATTRIBUTE, [*attached, launcher.module()])


def _announced(body: tirx.Stmt) -> tirx.Stmt:
    """Return a function's body with its parallel regions announced to the launcher."""

    def loop(stmt: tirx.For) -> Any:
        return _after_call(stmt.extent, stmt) if stmt.kind == tirx.ForKind.PARALLEL else stmt

    def group(stmt: tirx.AttrStmt) -> Any:
        if stmt.attr_key != GROUP:
            return stmt
        plain = tvm_ffi.structural_map(stmt.body, (tirx.SeqStmt, _without_call), order="post")
        return _after_call(0, tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, plain))

    return tvm_ffi.structural_map(body, [(tirx.For, loop), (tirx.AttrStmt, group)], order="post")


def _after_call(extent: Any, region: tirx.Stmt) -> tirx.Stmt:
    known = compat.int_value(extent)
    count = tirx.Cast("int64", extent) if known is None else compat.const(known, "int64")
    call = tirx.call_extern("int32", launcher.EXTENT, count)
    return tirx.SeqStmt([tirx.Evaluate(call), region])


def _without_call(steps: tirx.SeqStmt) -> tirx.Stmt:
    """Return a loop without the call that announces it. Other sequences stay."""
    first, *rest = compat.elements(steps.seq)
    announces = (
        isinstance(first, tirx.Evaluate)
        and compat.kind(first.value) == "Call"
        and any(getattr(arg, "value", None) == launcher.EXTENT for arg in first.value.args[:1])
    )
    return rest[0] if announces and len(rest) == 1 else steps


def _attribute(key: str, value: str, body: tirx.Stmt) -> tirx.Stmt:
    return tirx.AttrStmt(compat.const(0, "int32"), key, compat.string(value), body)
