# SPDX-License-Identifier: Apache-2.0
"""HalfSums: accumulate sums and products of 16-bit floats in float32.

Matmuls and convolutions keep the type that the model asks for.

Fault: TVM's kernels round a float16 or bfloat16 sum after every element. A float16 sum of ones never exceeds 2048.
Seen in: TVM 0.27.0
Input: ``R.sum`` of 4096 ones in float16, target llvm
Upstream: none known
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ... import compat
from ...graph.dtype import HALF
from ...support.module_pass import module_pass
from ..prim_funcs import REDUCED, with_body, with_unscheduled


@module_pass
class HalfSums:
    """Accumulate sums and products of float16 and bfloat16 in float32, and round the result once."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_unscheduled(mod, _rewritten)


def _rewritten(_name: str, func: Any) -> Any:
    names: list[str] = []

    def seen(block: Any) -> None:
        if _accumulates_halves(block):
            names.append(block.name_hint)

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, seen), order="pre")
    if not names:
        return func
    schedule = s_tir.Schedule(func)
    for name in names:
        schedule.cache_write(schedule.get_sblock(name), 0, "global")
    rewritten = schedule.mod["main"]
    sums: dict[Any, Any] = {}

    def found(block: Any) -> None:
        if block.name_hint in names:
            narrow = block.body.buffer
            sums[narrow] = tirx.decl_buffer(
                narrow.shape, "float32", f"{narrow.name}_wide", layout=narrow.ty.layout
            )

    tvm_ffi.structural_walk(rewritten.body, (s_tir.SBlock, found), order="pre")
    return with_body(rewritten, _widened(rewritten.body, sums))


def _accumulates_halves(block: Any) -> bool:
    """Return True if a block adds up or multiplies single elements in a 16-bit float."""
    start, step = block.init, block.body
    if not (isinstance(start, tirx.BufferStore) and isinstance(step, tirx.BufferStore)):
        return False
    if compat.buffer_dtype(step.buffer) not in HALF or compat.kind(step.value) not in ("Add", "Mul"):
        return False
    if not any(axis.iter_type == REDUCED for axis in block.iter_vars):
        return False
    own, other = step.value.a, step.value.b
    reads_itself = compat.is_load(own) and compat.load_buffer(own).same_as(step.buffer)
    return reads_itself and len(compat.loads_in(other)) <= 1


def _widened(body: Any, sums: dict[Any, Any]) -> Any:
    """Return the statement with float32 buffers in place of the keys of ``sums``."""

    def load(e: Any) -> Any:
        buffer = compat.load_buffer(e)
        if buffer not in sums:
            return e
        return tirx.Cast(compat.buffer_dtype(buffer), compat.load(sums[buffer], compat.elements(e.indices)))

    def wide(value: Any) -> Any:
        if compat.kind(value) == "Cast" and compat.is_load(value.value):
            if any(compat.load_buffer(value.value).same_as(buffer) for buffer in sums.values()):
                return value.value
        if compat.kind(value) == "FloatImm":  # the initial value, which TVM's schedules want as a number
            return compat.const(float(value.value), "float32")
        return tirx.Cast("float32", value)

    def store(s: Any) -> Any:
        if s.buffer not in sums:
            return s
        combines = compat.kind(s.value) in ("Add", "Mul")
        value = type(s.value)(wide(s.value.a), wide(s.value.b)) if combines else wide(s.value)
        return tirx.BufferStore(sums[s.buffer], value, s.indices)

    def region(r: Any) -> Any:
        return tirx.BufferRegion(sums[r.source], r.region) if r.source in sums else r

    def block(b: Any) -> Any:
        return compat.changed_block(
            b,
            reads=[region(r) for r in b.reads],
            writes=[region(r) for r in b.writes],
            alloc_buffers=[sums.get(a, a) for a in b.alloc_buffers],
        )

    for kind, change in ((tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (s_tir.SBlock, block)):
        body = tvm_ffi.structural_map(body, (kind, change), order="post")
    return body
