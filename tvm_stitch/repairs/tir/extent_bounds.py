# SPDX-License-Identifier: Apache-2.0
"""Write extents of parameters so that TVM draws no false conclusions from them.

TVM draws no conclusion from a sum of two multiples of one symbol, so ``3 * n - 27`` becomes ``2 * n + n - 27``.

Fault: TVM's simplifier assumes that no extent of a parameter is negative. From ``3 * n - 27`` it concludes ``n >=
    27`` instead of ``n >= 9``, and drops the ``max(..., 1)`` or the loop's tail that a kernel needs for ``n =
    10``.
Seen in: TVM 0.27.0
Input: ``a[max(n, 12)]`` of a buffer with ``3 * n - 20`` elements
Upstream: none known
"""

from __future__ import annotations

from typing import Any

from ... import compat
from ...compat import Expr, Var, tir


def sound_extents(func: Any) -> Any:
    """Return the scheduled PrimFunc, with extents such as ``3 * n - 27`` written as ``2 * n + n - 27``."""
    if not compat.HAS_SYMBOLIC_EXTENTS:
        return func
    changed = {}
    for param, buffer in compat.prim_func_params(func):
        if buffer is None:
            continue
        shape = [_sound(extent) for extent in buffer.shape]
        if not all(new.same_as(old) for new, old in zip(shape, buffer.shape)):
            changed[param] = tir.decl_buffer(
                shape,
                buffer.dtype,
                buffer.name,
                strides=buffer.strides,
                elem_offset=buffer.elem_offset,
                scope=buffer.scope(),
                data_alignment=buffer.data_alignment,
                offset_factor=buffer.offset_factor,
                layout=buffer.layout,
            )
    if not changed:
        return func
    body = compat.with_buffers(func.body, changed)
    params = [changed.get(param, param) for param in func.params]
    return tir.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


def _sound(extent: Expr) -> Expr:
    """Return the extent itself, or an equal one from which TVM cannot conclude too much."""
    terms, offset = _sum(extent)
    if len(terms) != 1 or offset >= 0:
        return extent
    symbol, factor = _product(terms[0])
    if symbol is None or factor < 2:
        return extent
    dtype = compat.dtype_of(symbol)
    rest = symbol if factor == 2 else symbol * compat.const(factor - 1, dtype)
    return rest + symbol - compat.const(-offset, dtype)


def _sum(e: Expr) -> tuple[list[Expr], int]:
    """Return the terms of a sum that are not numbers, subtracted ones too, and the sum of the numbers."""
    value = compat.int_value(e)
    if value is not None:
        return [], value
    name = compat.kind(e)
    if name not in ("Add", "Sub"):
        return [e], 0
    (left, a), (right, b) = _sum(e.a), _sum(e.b)
    return left + right, a + b if name == "Add" else a - b


def _product(e: Expr) -> tuple[Var | None, int]:
    """Return the symbol and the factor of ``factor * symbol``, or no symbol for any other expression."""
    if compat.kind(e) in ("Var", "SizeVar"):
        return e, 1
    if compat.kind(e) == "Mul":
        for operand, other in ((e.a, e.b), (e.b, e.a)):
            value = compat.int_value(other)
            if value is not None:
                symbol, factor = _product(operand)
                return symbol, factor * value
    return None, 0
