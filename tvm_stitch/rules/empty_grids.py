# SPDX-License-Identifier: Apache-2.0
"""EmptyGrids: a kernel that has nothing to compute touches no memory."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.script import tirx as T

from .. import compat
from ..codegen.opaque import as_c_type
from ..codegen.zero_divisors import is_positive
from ..interrupts import carrying
from .rewriting import with_scheduled_loops


@tvm.transform.module_pass(opt_level=0, name="EmptyGrids")
class EmptyGrids:
    """Let the threads of TVM's schedules leave where symbolic extents make the grid empty.

    TVM 0.27 launches one block where a schedule asks for none, and that block would read and write memory of tensors
    that have no elements. Stitched kernels see to it themselves.
    """

    @carrying
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every PrimFunc that is scheduled and whose number of blocks may be 0."""
        return with_scheduled_loops(mod, _guarded)


def _guarded(loop: Any) -> Any:
    binding = loop.thread_binding
    if binding is None or not binding.thread_tag.startswith("blockIdx.") or is_positive(loop.extent):
        return loop
    dtype = compat.dtype_of(loop.extent)
    # To the simplifier a loop's extent is positive inside of it.
    idle = tirx.LE(as_c_type(loop.extent, dtype), compat.const(0, dtype))
    body = tirx.SeqStmt([tirx.IfThenElse(idle, tirx.Evaluate(T.thread_return()), None), loop.body])
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, binding, loop.annotations)
