# SPDX-License-Identifier: Apache-2.0
"""The barrier across a grid: cooperative groups' where TVM launches cooperatively, else a device function of our own.

A TVM with Relay has the plain launch only. There the barrier is a call of a function that
``tvm_stitch.relay.cuda_source`` defines in the generated code. Its state must not be shared with another launch that
runs at the same time, not even of the same kernel, and must be right without being set up before each launch. So it is
found by a *key*: the address of a small workspace, which no two launches that run at once have in common.
"""

from __future__ import annotations

from collections.abc import Mapping

from ... import compat
from ...compat import Buffer, T, tir
from .. import builder as B

GRID_BARRIER = "tvm_stitch_grid_barrier"
"""Name of the device function; its argument is the key."""
KEY = "grid_barrier_key"
"""Name of the workspace among a function's scratch."""


def declare_barrier() -> dict[str, Buffer]:
    """What a kernel with barriers needs besides its scratch. To be called before the kernel is built."""
    if compat.LAUNCHES_COOPERATIVELY:
        return {}
    return {KEY: compat.allocate([B.i64(1)], "uint32", "global", KEY)}


def grid_barrier(scratch: Mapping[str, Buffer]) -> None:
    """Emit a barrier for all threads of the grid; ``scratch`` has what ``declare_barrier`` gave."""
    if compat.LAUNCHES_COOPERATIVELY:
        B.evaluate(T.cuda.grid_sync())
    else:
        B.evaluate(tir.call_extern("int32", GRID_BARRIER, scratch[KEY].data))
