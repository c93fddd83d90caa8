# SPDX-License-Identifier: Apache-2.0
"""Scratch buffers: trailing parameters of an emitted function, or allocations around its kernels.

Relax can plan the memory of its own allocations together with that of its other tensors. A TVM with Relay calls a
function with its inputs and outputs only. There an allocation outside of all kernels becomes a workspace that host
code takes from the device's pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .... import compat
from ....compat import Buffer, PrimFunc, Stmt, tir
from ....graph.extent import as_expr
from ....plan.kernel import Scratch
from ..grid_barrier import declare_barrier

WORKSPACE_ATTR = "tvm_stitch.workspace"
"""Function attribute: the number of last parameters that are scratch."""


def declare_scratch(wanted: Iterable[Scratch], barrier: bool = False) -> dict[str, Buffer]:
    """Declare a buffer for each scratch, by its name, and the buffers of a grid barrier.

    Call it where the body is built, before any kernel.
    """
    if compat.TAKES_WORKSPACE:
        return {s.name: tir.decl_buffer([as_expr(e) for e in s.shape], s.dtype, s.name) for s in wanted}
    buffers = {
        s.name: compat.allocate([as_expr(e) for e in s.shape], s.dtype, "global", s.name) for s in wanted
    }
    return {**buffers, **(declare_barrier() if barrier else {})}


def finish(
    func: PrimFunc, body: Stmt, scratch: Mapping[str, Buffer], attrs: Mapping[str, Any] | None = None
) -> PrimFunc:
    """Return ``func`` with the emitted body, marked as scheduled.

    Scratch becomes trailing parameters, unless the body allocates it.
    """
    more = list(scratch.values()) if compat.TAKES_WORKSPACE else []
    func = compat.with_body_and_params(func, body, {}, more) if more else func.with_body(body)
    func = func.with_attr(WORKSPACE_ATTR, len(more)) if more else func
    for key, value in (attrs or {}).items():
        func = func.with_attr(key, value)
    return func.with_attr(compat.attribute("is_scheduled"), True)
