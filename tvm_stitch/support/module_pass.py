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


def named(made: Any, name: str) -> Any:
    """Return a pass under another name, by which TVM's instruments know it; the pass itself if that is its name.

    Of a class of :func:`module_pass` only the new name is seen, of a pass of TVM's both names.
    """
    if str(made.info.name) == name:
        return made
    if hasattr(made, "_inst"):  # the instance of the class, in a pass of TVM's
        return tvm.transform.module_pass(made._inst.transform_module, opt_level=0, name=name)

    @carrying
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return made(mod)

    return tvm.transform.module_pass(run, opt_level=0, name=name)
