# SPDX-License-Identifier: Apache-2.0
"""bfloat16 on a CPU: rounding as integer arithmetic, and all loads and stores for a TVM with Relay.

TVM drops a cast to bfloat16 and back again, and may lose a NaN in a single cast. The bfloat16 lowering of TVMs with
Relay refuses vectorized stores of a loaded bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import compat
from ...compat import Buffer, Expr, tir
from ...graph.ir import StitchGraph


def rounds(graph: StitchGraph) -> bool:
    """Return True if anything in the graph is a bfloat16. Otherwise there is nothing to lower."""
    computed = (compat.dtype_of(e) for op in graph.operators for e in compat.parts(op.value))
    return "bfloat16" in {t.dtype for t in graph.tensors()} or "bfloat16" in computed


def lower_rounding(expr: Expr, bind: Callable[[Expr], Expr] | None) -> Expr:
    """Replace every pair of casts float32 -> bfloat16 -> float32 by equal arithmetic on the bits.

    ``bind`` names a value that is used several times. Below an ``if_then_else`` nothing is bound.
    """
    if compat.is_choice(expr):
        return compat.rebuild(expr, lambda e: lower_rounding(e, None))
    if compat.kind(expr) == "Cast" and compat.dtype_of(expr) == "float32":
        inner = expr.value
        if compat.kind(inner) == "Cast" and compat.dtype_of(inner) == "bfloat16":
            value = lower_rounding(inner.value, bind)
            if compat.dtype_of(value) == "float32":
                return round_bfloat16(value, bind)
    return compat.rebuild(expr, lambda e: lower_rounding(e, bind))


def stored_as(value: Expr, dtype: str) -> Expr:
    """Convert ``value`` to an element of a tensor.

    TVM's cast to bfloat16 rounds the bits of a NaN too. A NaN whose bits are nearly all ones becomes a zero. A NaN
    whose fraction is all zeros except for the lowest bits becomes an infinity.
    """
    if dtype == "bfloat16" and compat.COMPUTES_BFLOAT16 and compat.dtype_of(value) == "float32":
        bits = tir.reinterpret("int32", value)
        value = tir.reinterpret("float32", tir.Select(are_nan(bits), compat.const(0x7FC00000, "int32"), bits))
    return value if compat.dtype_of(value) == dtype else tir.Cast(dtype, value)


def round_bfloat16(value: Expr, bind: Callable[[Expr], Expr] | None = None) -> Expr:
    """Return the float32 nearest to ``value`` among the bfloat16 numbers (ties to even). NaN and infinities stay."""
    return tir.reinterpret("float32", rounded_bits(value, bind))


def rounded_bits(value: Expr, bind: Callable[[Expr], Expr] | None = None) -> Expr:
    """Return the bits of :func:`round_bfloat16` as int32.

    They are the bits of a bfloat16 above 16 zeros. For a NaN they are all bits of ``value``.
    """

    def i32(number: int) -> Expr:
        return compat.const(number, "int32")

    bits = tir.reinterpret("int32", value)
    if bind is not None:
        bits = bind(bits)
    odd = (bits >> i32(16)) & i32(1)
    rounded = (bits + i32(0x7FFF) + odd) & i32(-0x10000)
    return tir.Select(are_nan(bits), bits, rounded)


def are_nan(bits: Expr) -> Expr:
    """Return True if a float32's bits (int32) are those of a NaN."""
    return (bits & compat.const(0x7FFFFFFF, "int32")) > compat.const(0x7F800000, "int32")


def as_bits(body: Any) -> Any:
    """Replace bfloat16 expressions and accesses in the statement ``body`` by those of uint16 views.

    Raises:
        NotImplementedError: if it computes in bfloat16 (the emitters compute in float32).
    """
    views: dict[Buffer, Buffer] = {}

    def view(buffer: Buffer) -> Buffer:
        if buffer not in views:
            views[buffer] = tir.decl_buffer(
                list(buffer.shape), "uint16", buffer.name, data=buffer.data, scope=buffer.scope()
            )
        return views[buffer]

    def visit(e: Expr) -> Expr:
        """Rewrite an expression. The result has dtype uint16 if the expression had bfloat16."""
        if compat.kind(e) == "Cast" and _is_bfloat16(e.value):
            high = tir.Cast("int32", visit(e.value)) << compat.const(16, "int32")
            wide = tir.reinterpret("float32", high)
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
        if compat.is_choice(e):
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


def _narrow(value: Expr) -> Expr:
    """Return the bits (uint16) of the bfloat16 nearest to a float32."""
    bits = tir.reinterpret("int32", value)
    # The upper half of a NaN may be that of an infinity: make it quiet.
    kept = tir.Select(are_nan(bits), bits | compat.const(0x400000, "int32"), rounded_bits(value))
    return tir.Cast("uint16", kept >> compat.const(16, "int32"))
