# SPDX-License-Identifier: Apache-2.0
"""Let CPU kernels expect no more of their arguments than aligned elements.

Loads that do not assume the alignment are as fast on data that is aligned after all.

Fault: TVM declares every argument aligned to 64 bytes, and LLVM emits vector loads that fault on anything else. The
    AOT executor embeds parameters in the library without that alignment.
Seen in: TVM 0.17.dev0
Input: ``relay.nn.layer_norm`` of (48, 72) float32 with bound parameters, executor aot, target llvm
Upstream: none known
"""

from __future__ import annotations

from typing import Any

import tvm

from ...compat import expressions as ir
from ...compat.expressions import Buffer, tir

_ACCESSES = ["tir.BufferLoad", "tir.BufferStore"]


def element_aligned(func: Any) -> Any:
    """Return the scheduled PrimFunc with arguments that need no alignment beyond that of their elements."""
    arguments = {buffer: _element_aligned(buffer) for buffer in func.buffer_map.values()}

    def change(access: Any) -> Any:
        argument = arguments.get(access.buffer)
        if argument is None:
            return None
        if ir.is_load(access):
            return ir.load(argument, access.indices)
        return tir.BufferStore(argument, access.value, access.indices)

    body = tir.stmt_functor.ir_transform(func.body, None, change, _ACCESSES)
    declared = {param: arguments[buffer] for param, buffer in func.buffer_map.items()}
    return tir.PrimFunc(func.params, body, func.ret_type, declared, func.attrs, func.span)


def _element_aligned(buffer: Buffer) -> Buffer:
    return tir.decl_buffer(
        buffer.shape,
        buffer.dtype,
        buffer.name,
        data=buffer.data,
        strides=buffer.strides,
        elem_offset=buffer.elem_offset,
        scope=buffer.scope(),
        data_alignment=max(1, tvm.DataType(buffer.dtype).bits // 8),
        offset_factor=buffer.offset_factor,
    )
