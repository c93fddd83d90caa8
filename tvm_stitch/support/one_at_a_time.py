# SPDX-License-Identifier: Apache-2.0
"""A lock for TVM's functions that only one thread may run at a time.

TVM's operator definitions name their results through ``tvm.te.tag_scope``, whose current scope belongs to the
process. A second thread inside one gets "nested op_tag is not allowed for now".
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import tvm

from .interrupts import carrying

operator_definitions = threading.RLock()
"""Held while this package runs TVM's operator definitions."""


def exclusively(passes: Sequence[Any], name: str) -> Any:
    """Return one pass that runs passes which ask TVM's operator definitions, in one thread at a time.

    Args:
        passes: are run in order.
        name: the pass's name, by which TVM's instruments know it.
    """

    @tvm.transform.module_pass(opt_level=0, name=name)
    @carrying
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        with operator_definitions:
            return tvm.transform.Sequential(list(passes))(mod)

    return run
