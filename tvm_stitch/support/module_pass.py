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
        return self.rewritten(mod)

    kind.transform_module = transform_module
    return tvm.transform.module_pass(opt_level=0, name=kind.__name__)(kind)
