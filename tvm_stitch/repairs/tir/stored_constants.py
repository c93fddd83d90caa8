# SPDX-License-Identifier: Apache-2.0
"""Store constants of bfloat16 in kernels for GPUs that have no such type.

Fault: TVM rounds a float32 to bfloat16 by reading its bits through its address. The simplifier puts a constant in
    place of the variable whose address is read, and no C++ compiler accepts the address of a constant.
Seen in: TVM 0.27.0
Input: ``y[i] = T.bfloat16(1)``, target cuda with arch sm_75
Upstream: none known
"""

from __future__ import annotations

from typing import Any

from ... import compat
from ...compat import tir
from .opaque import as_c_type


def opaque_stored_constants(func: Any) -> Any:
    """Return the scheduled PrimFunc with stored constants of bfloat16 as float32 ones that TVM rounds but not folds."""
    if compat.HAS_RELAY:
        return func

    def stored(store: Any) -> Any:
        value = store.value
        if compat.kind(value) != "FloatImm" or compat.dtype_of(value) != "bfloat16":
            return store
        wide = as_c_type(compat.const(float(value.value), "float32"), "float32")
        return tir.BufferStore(store.buffer, tir.Cast("bfloat16", wide), store.indices)

    body = compat.structural_map(func.body, (tir.BufferStore, stored), order="post")
    return func if body.same_as(func.body) else func.with_body(body)
