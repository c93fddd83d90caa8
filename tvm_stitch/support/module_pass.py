# SPDX-License-Identifier: Apache-2.0
"""Passes over modules, which TVM calls: what they raise comes out of TVM as it is."""

from __future__ import annotations

from typing import Any

import tvm

from .interrupts import carrying


def module_pass(kind: Any) -> Any:
    """A class whose ``rewritten(mod)`` gives the module with what the class is for, as a pass of TVM's of that name."""

    @carrying
    def transform_module(self: Any, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return self.rewritten(mod)

    kind.transform_module = transform_module
    return tvm.transform.module_pass(opt_level=0, name=kind.__name__)(kind)
