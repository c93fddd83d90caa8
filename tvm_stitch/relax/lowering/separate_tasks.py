# SPDX-License-Identifier: Apache-2.0
"""Keep LLVM from inlining the functions of tasks into a serial and a parallel loop, which would double their code.

A task takes some microseconds, and a call of it a few nanoseconds. LLVM's code has a function of its own for a scope
that TVM's packed functions have around their bodies. LLVM never inlines that function if its parameter is a plain
pointer without known properties. So the scope tests such a pointer, without reading its memory.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ... import compat
from .argument_checks import SCOPE

TASK_ATTR = "tvm_stitch.task"
"""Attribute of a private function that is called in loops over tasks, and returns 0."""


def with_tasks_apart(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a lowered module with the functions of tasks in scopes of their own."""
    tasks = {
        gvar: func
        for gvar, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and func.attrs and TASK_ATTR in func.attrs
    }
    if not tasks:
        return mod
    mod = mod.clone()
    for gvar, func in tasks.items():
        mod.update_func(gvar, _apart(func, gvar.name_hint))
    return mod


def _apart(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """Return a function with its body in a scope. Declarations of tensors stay outside.

    Otherwise TVM would pass LLVM too much knowledge about the pointers.
    """
    pointers = [param for param in func.params if compat.kind(param.ty) == "PointerType"]
    if not pointers or compat.kind(func.body) != "SeqStmt":
        return func
    *steps, done = compat.elements(func.body.seq)
    declared = [step for step in steps if _declares(step, pointers)]
    inside = [step for step in steps if not any(step is each for each in declared)]
    asked = tirx.Evaluate(compat.intrinsic("bool", "isnullptr", pointers[0]))
    scope = tirx.AttrStmt(
        compat.const(0, "int32"),
        SCOPE,
        tvm.ir.StringImm(f"{name}_compute_"),
        tirx.SeqStmt([asked, *inside]),
    )
    return func.with_body(tirx.SeqStmt([*declared, scope, done]))


def _declares(step: tirx.Stmt, pointers: list[Any]) -> bool:
    """Return True if a statement declares a tensor for a parameter."""
    return compat.kind(step) == "DeclBuffer" and any(step.data.same_as(pointer) for pointer in pointers)
