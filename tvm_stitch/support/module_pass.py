# SPDX-License-Identifier: Apache-2.0
"""Module passes whose exceptions leave TVM unchanged."""

from __future__ import annotations

from typing import Any

import tvm

from .interrupts import carrying


def module_pass(kind: Any) -> Any:
    """Return a class with a method ``rewritten(mod)`` as a pass of TVM, named after the class."""

    @carrying
    def transform_module(self: Any, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        run = self.decided if hasattr(kind, "decided") else self.rewritten
        return run(mod)

    kind.transform_module = transform_module
    return tvm.transform.module_pass(opt_level=0, name=kind.__name__)(kind)


def named(original: Any, name: str) -> Any:
    """Return a pass under another name for TVM's instruments, or the pass itself if it has that name.

    Instruments see only the new name for a class of :func:`module_pass`, and both names for a pass of TVM.
    """
    if str(original.info.name) == name:
        return original
    if hasattr(original, "_inst"):  # the instance of the class, in a pass of TVM's
        return tvm.transform.module_pass(original._inst.transform_module, opt_level=0, name=name)

    @carrying
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return original(mod)

    return tvm.transform.module_pass(run, opt_level=0, name=name)
