# SPDX-License-Identifier: Apache-2.0
"""Identifiers in place of a model's names, in functions of which TVM generates text in C or CUDA C.

TVM's code generators write the names of functions, buffers and variables as they are. LLVM takes any name, so
functions for it keep theirs. Functions of Relax keep theirs too: the virtual machine finds them by name.
"""

from __future__ import annotations

import re
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ...compat.identifiers import identifier
from ...repairs.prim_funcs import with_prim_funcs
from ...support.module_pass import module_pass

GLOBAL = "global_symbol"

_THREAD = re.compile(r"(\w*Idx|[vc]thread)\.[xyz]|", re.ASCII)
"""Names of thread axes, and of variables without a name. TVM's code generators write others for them."""

_WRITTEN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*|", re.ASCII)
"""Names that TVM's code generators write as identifiers. They replace dots, and give names to variables without one."""


@module_pass
class FunctionNames:
    """Give functions that become kernels, or parts of them, names that are identifiers."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rename the PrimFuncs of a module, and its private functions of Relax, with all their calls."""
        renamed: dict[Any, Any] = {}
        for gvar, func in mod.functions_items():
            public = func.attrs is not None and GLOBAL in func.attrs
            if isinstance(func, relax.Function) and public:
                continue
            if (name := identifier(str(gvar.name_hint))) != gvar.name_hint:
                renamed[gvar] = tvm.ir.GlobalVar(name)
                relax.expr._update_type(renamed[gvar], gvar.ty)
        if not renamed:
            return mod

        def change(gvar: Any) -> Any:
            return renamed.get(gvar, gvar)

        functions = {}
        for gvar, func in mod.functions_items():
            renamed_func = tvm_ffi.structural_map(func, (tvm.ir.GlobalVar, change), order="post")
            if gvar in renamed and renamed_func.attrs is not None and GLOBAL in renamed_func.attrs:
                renamed_func = renamed_func.with_attr(GLOBAL, renamed[gvar].name_hint)
            functions[change(gvar)] = renamed_func
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


@module_pass
class VariableNames:
    """Give variables and buffers of all PrimFuncs names that are identifiers."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rename them in every function that has others."""
        return with_prim_funcs(mod, lambda _name, func: with_identifiers(func))


def with_identifiers(func: Any) -> Any:
    """Return a PrimFunc with identifiers as the names of its variables and buffers."""
    renamed: dict[Any, Any] = {}

    def change(var: Any) -> Any:
        name = str(var.name)
        if _THREAD.fullmatch(name) or identifier(name) == name:
            return var
        if var not in renamed:
            renamed[var] = type(var)(identifier(name), var.ty)
        return renamed[var]

    return tvm_ffi.structural_map(func, (tvm.ir.Var, change), order="post")


def check_identifiers(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a lowered module, after a check that all names in its device functions are words.

    Raises:
        ValueError: with the first other name. TVM's code generator would write it into the code as it is.
    """
    for gvar, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or not _is_text(func):
            continue
        for name in (str(gvar.name_hint), *_names(func)):
            if not _WRITTEN.fullmatch(name):
                raise ValueError(
                    f"the name {name!r} in the kernel {gvar.name_hint!r} is no identifier of CUDA C"
                )
    return mod


def _names(func: Any) -> list[str]:
    """Return the names of a function's variables and buffers."""
    names = [str(var.name) for var in func.params]
    tvm_ffi.structural_walk(func.body, (tvm.ir.Var, lambda var: names.append(str(var.name))))
    return names


def _is_text(func: Any) -> bool:
    """Return whether TVM generates C or CUDA C of a function."""
    target = func.attrs.get("target") if func.attrs is not None else None
    return target is not None and target.kind.name != "llvm"
