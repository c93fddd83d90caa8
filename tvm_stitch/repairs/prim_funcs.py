# SPDX-License-Identifier: Apache-2.0
"""Rewrite some of a module's PrimFuncs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx


def with_prim_funcs(mod: tvm.IRModule, rewrite: Callable[[str, Any], Any]) -> tvm.IRModule:
    """Return the module with ``rewrite(name, func)`` in place of every PrimFunc, unless that is None or ``func``."""
    updates = {}
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            rewritten = rewrite(gvar.name_hint, func)
            if rewritten is not None and not rewritten.same_as(func):
                updates[gvar] = rewritten
    if not updates:
        return mod
    mod = mod.clone()
    for gvar, func in updates.items():
        mod.update_func(gvar, func)
    return mod


SPATIAL, REDUCED = 0, 2
"""Kinds of a block's axes, as the numbers of TVM's ``IterVarType``."""


def with_unscheduled(mod: tvm.IRModule, rewrite: Callable[[str, Any], Any]) -> tvm.IRModule:
    """Apply :func:`with_prim_funcs` to the PrimFuncs that are not scheduled yet."""
    return with_prim_funcs(mod, lambda name, func: None if is_scheduled(func) else rewrite(name, func))


def with_scheduled(mod: tvm.IRModule, *changes: tuple[Any, Callable[[Any], Any]]) -> tvm.IRModule:
    """Return the module with ``change(node)`` in place of every node of a type in its scheduled PrimFuncs.

    Args:
        mod: the module, which stays as it is.
        changes: pairs of a node type and the function that changes its nodes, inner nodes first.
    """

    def rewrite(_name: str, func: Any) -> Any:
        if not is_scheduled(func):
            return None
        return with_body(func, tvm_ffi.structural_map(func.body, list(changes), order="post"))

    return with_prim_funcs(mod, rewrite)


def is_scheduled(func: Any) -> bool:
    """Return True if a schedule was applied to a PrimFunc."""
    return bool(func.attrs and func.attrs.get("tirx.is_scheduled"))


def with_body(func: Any, body: Any) -> Any:
    """Return the function with another body, or the function itself if its body is the same object."""
    return func if body.same_as(func.body) else func.with_body(body)
