# SPDX-License-Identifier: Apache-2.0
"""bfloat16 as its bits: loads and stores of bfloat16 buffers become integer arithmetic on uint16 views of them.

For a TVM with Relay, whose own lowering of bfloat16 refuses vectorized stores of what a bfloat16 load gives.
"""

from __future__ import annotations

from typing import Any

from ... import compat
from ...compat import Buffer, Expr, tir
from .half import are_nan, rounded_bits


def as_bits(body: Any) -> Any:
    """``body``, a statement, without expressions and accesses of dtype bfloat16.

    Raises:
        NotImplementedError: where it computes in bfloat16 (the emitters compute in float32).
    """
    views: dict[Buffer, Buffer] = {}

    def view(buffer: Buffer) -> Buffer:
        if buffer not in views:
            views[buffer] = tir.decl_buffer(
                list(buffer.shape), "uint16", buffer.name, data=buffer.data, scope=buffer.scope()
            )
        return views[buffer]

    def visit(e: Expr) -> Expr:
        """An expression; of dtype uint16 where it was bfloat16."""
        if compat.kind(e) == "Cast" and _is_bfloat16(e.value):
            wide = _widen(visit(e.value))
            return wide if compat.dtype_of(e) == "float32" else tir.Cast(compat.dtype_of(e), wide)
        return bits(e) if _is_bfloat16(e) else compat.rebuild(e, visit)

    def bits(e: Expr) -> Expr:
        name = compat.kind(e)
        if compat.is_load(e):
            return compat.load(view(compat.load_buffer(e)), [visit(i) for i in e.indices])
        if name == "FloatImm":
            return _narrow(compat.const(e.value, "float32"))
        if name == "Cast":
            value = visit(e.value)
            return _narrow(value if compat.dtype_of(value) == "float32" else tir.Cast("float32", value))
        if name == "Select":
            return tir.Select(visit(e.condition), visit(e.true_value), visit(e.false_value))
        if name == "Call" and compat.call_name(e) == "if_then_else":
            return tir.if_then_else(*(visit(a) for a in e.args))
        raise NotImplementedError(f"{name} of dtype bfloat16")

    def change(node: Any) -> Any:
        if compat.kind(node) == "Cast":
            return visit(node)
        if compat.buffer_dtype(node.buffer) != "bfloat16":
            return None
        return tir.BufferStore(view(node.buffer), visit(node.value), [visit(i) for i in node.indices])

    return tir.stmt_functor.ir_transform(body, change, None, ["tir.BufferStore", "tir.Cast"])


def _is_bfloat16(e: Expr) -> bool:
    return compat.dtype_of(e) == "bfloat16"


def _widen(bits: Expr) -> Expr:
    """The float32 of a bfloat16's bits (uint16)."""
    return tir.reinterpret("float32", tir.Cast("int32", bits) << compat.const(16, "int32"))


def _narrow(value: Expr) -> Expr:
    """The bits (uint16) of the bfloat16 nearest to a float32."""
    bits = tir.reinterpret("int32", value)
    # The upper half of a NaN may be that of an infinity: make it quiet.
    kept = tir.Select(are_nan(bits), bits | compat.const(0x400000, "int32"), rounded_bits(value))
    return tir.Cast("uint16", kept >> compat.const(16, "int32"))
