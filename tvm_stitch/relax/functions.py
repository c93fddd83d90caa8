# SPDX-License-Identifier: Apache-2.0
"""The Relax functions of a module that are the model's own, for passes that rewrite them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax


def own_functions(mod: tvm.IRModule) -> list[tuple[Any, Any]]:
    """The Relax functions and their names, but for those that a pass has made of calls that belong together."""
    return [
        (gvar, func)
        for gvar, func in mod.functions_items()
        if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs)
    ]


def with_own_functions(mod: tvm.IRModule, rewrite: Callable[[Any], Any]) -> tvm.IRModule:
    """The module with its own Relax functions rewritten; the module given stays as it is."""
    mod = mod.clone()
    for gvar, func in own_functions(mod):
        mod.update_func(gvar, rewrite(func))
    return mod
