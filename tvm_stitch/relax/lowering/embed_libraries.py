# SPDX-License-Identifier: Apache-2.0
"""EmbedLibraries: put this package's functions that a compiled module calls into its executable."""

from __future__ import annotations

import tvm
from tvm import relax

from ...compute.cuda import library
from ...support.module_pass import module_pass
from ...target import other_machine
from ..rewriting.functions import own_functions

ATTRIBUTE = "external_mods"
"""Module attribute that lists the modules that TVM's build imports into the executable."""


@module_pass
class EmbedLibraries:
    """Attach the code that calls libraries to a module that needs it.

    ``export_library`` links this code into the model's library. A model for another kind of CPU than this machine's
    does not get the code, because it is compiled for this machine.

    Args:
        target: the target that the module is compiled for.
    """

    def __init__(self, target: tvm.target.Target):
        self.target = target

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Add to the modules that the executable will import."""
        if self.target.kind.name != "cuda" or other_machine(self.target):
            return mod
        called = called_by_name(mod)
        modules = [each.calls.module() for each in library.LIBRARIES if each.function in called]
        attached = list((mod.attrs or {}).get(ATTRIBUTE, []))
        return mod.with_attr(ATTRIBUTE, [*attached, *modules]) if modules else mod


def called_by_name(mod: tvm.IRModule) -> set[str]:
    """Return the names of functions outside a module that its Relax functions call.

    The functions are in TVM's registry or in imported modules.
    """
    names: set[str] = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.ExternFunc):
            names.add(str(expr.global_symbol))

    for _, func in own_functions(mod):
        relax.analysis.post_order_visit(func, visit)
    return names
