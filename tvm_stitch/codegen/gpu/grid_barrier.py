# SPDX-License-Identifier: Apache-2.0
"""The barrier across a grid: that of cooperative groups if TVM launches cooperatively, else a device function.

A TVM with Relay has the plain launch only. There the barrier is a call of a function that
``tvm_stitch.relay.cuda_source`` defines in the generated code. Two launches that run at the same time must not share
its state, even if they launch the same kernel. The state must also be right without any setup before a launch. So the
function finds its state by a *key*: the address of a small workspace, which no two concurrent launches share.
"""

from __future__ import annotations

from collections.abc import Mapping

from ... import compat
from ...compat import Buffer, T, tir
from .. import builder as B

GRID_BARRIER = "tvm_stitch_grid_barrier"
"""Name of the device function. Its argument is the key."""
KEY = "grid_barrier_key"
"""Name of the workspace among a function's scratch."""


def declare_barrier() -> dict[str, Buffer]:
    """Return the buffers that a kernel with barriers needs in addition to its scratch.

    Call it before the kernel is built.
    """
    if compat.LAUNCHES_COOPERATIVELY:
        return {}
    return {KEY: compat.allocate([B.i64(1)], "uint32", "global", KEY)}


def grid_barrier(scratch: Mapping[str, Buffer]) -> None:
    """Emit a barrier for all threads of the grid. ``scratch`` includes the buffers from ``declare_barrier``."""
    if compat.LAUNCHES_COOPERATIVELY:
        B.evaluate(T.cuda.grid_sync())
    else:
        B.evaluate(tir.call_extern("int32", GRID_BARRIER, scratch[KEY].data))
