# SPDX-License-Identifier: Apache-2.0
"""The Relax functions of a module that are the model's own, for passes that rewrite them."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax


def own_functions(mod: tvm.IRModule) -> list[tuple[tvm.ir.GlobalVar, relax.Function]]:
    """Return the model's own Relax functions with their names, without functions that a pass made of several calls."""
    return [
        (gvar, func)
        for gvar, func in mod.functions_items()
        if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs)
    ]


def entries_of(mod: tvm.IRModule) -> list[str]:
    """Return the names of the functions that can be called from outside."""
    return [str(g.name_hint) for g, f in own_functions(mod) if f.attrs and "global_symbol" in f.attrs]


def entry_of(mod: tvm.IRModule) -> str:
    """Return the name of the function that a program calls: ``main``, or the only function that can be called.

    Raises:
        ValueError: when there are several, none of them ``main``, or none at all.
    """
    names = entries_of(mod)
    if "main" in names or len(names) == 1:
        return "main" if "main" in names else names[0]
    there = f"there are {', '.join(sorted(names))}" if names else "there is none"
    raise ValueError(f"one function is run, main or the only one that can be called; {there}")


def with_own_functions(
    mod: tvm.IRModule, rewrite: Callable[[relax.Function], relax.Function]
) -> tvm.IRModule:
    """Return the module with its own Relax functions rewritten. The given module stays as it is."""
    mod = mod.clone()
    for gvar, func in own_functions(mod):
        mod.update_func(gvar, rewrite(func))
    return mod


def with_result_inferred(func: relax.Function) -> relax.Function:
    """Return a function whose result type is the type of its body."""
    return relax.Function(func.params, func.body, func.body.ty, func.is_pure, func.attrs, func.span)
