# SPDX-License-Identifier: Apache-2.0
"""ScalarBooleans: read and write booleans one by one.

Stitched kernels have no vectorized loops over booleans.

Fault: TVM's CUDA code generator loads a pair of booleans as if each of them had two bytes. Vectorized loops over
    booleans therefore compute with other elements.
Seen in: TVM 0.27.0
Input: a vectorized loop over pairs of booleans in a scheduled PrimFunc, target cuda
Upstream: none known
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ... import compat
from ...support.module_pass import module_pass
from ..prim_funcs import with_scheduled


@module_pass
class ScalarBooleans:
    """Unroll the vectorized loops of TVM's schedules that touch booleans in memory. Runs after dlight's rules."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_scheduled(mod, (tirx.For, _unrolled))


def _unrolled(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED or not _touches_booleans(loop.body):
        return loop
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body, None, loop.annotations
    )


def _touches_booleans(body: Any) -> bool:
    buffers = [compat.load_buffer(load) for load in compat.loads_in(body)]
    tvm_ffi.structural_walk(
        body, (tirx.BufferStore, lambda store: buffers.append(store.buffer)), order="post"
    )
    return any(compat.buffer_dtype(buffer) == "bool" for buffer in buffers)
