# SPDX-License-Identifier: Apache-2.0
"""Write negations of int32 so that ptxas does not lose them.

The compilers before ptxas choose the order of operands, and no source is sure to be safe from the fault. So kernels
hold no negation that ptxas could see. ``-x`` is ``~x + 1``, with the ``~`` in assembly, because NVVM would turn it
into a negation again. Absolute values stay: they have an instruction of their own.

Fault: For sm_90 and later, ptxas makes one instruction (VIMNMX3) of two minima or maxima of int32, and drops the sign
    of a negated operand: ``min(min(a, -x), b)`` becomes ``min(min(a, x), b)``.
Seen in: ptxas of CUDA 13.0 on sm_90, and reported for 12.8 to 13.3 on sm_100
Input: ``min(min(a, -x), b)`` of int32, target cuda
Upstream: https://github.com/pytorch/pytorch/issues/190973
"""

from __future__ import annotations

from collections.abc import Callable

from ... import compat
from ...compat import Expr, tir
from .arithmetic import DEVICE

NEGATED = "tvm_stitch_negated"
"""Name of the device function. Its argument and its result are int32."""

FUNCTION = f"""
__forceinline__ __device__ int {NEGATED}(int x) {{
  int complement;
  asm("not.b32 %0, %1;" : "=r"(complement) : "r"(x));
  return (int)((unsigned)complement + 1u);
}}
"""

_LEAST = -(2**31)


def hidden_negation(e: Expr, visit: Callable[[Expr], Expr]) -> Expr | None:
    """Return an operation on int32 that negates, in a form that ptxas keeps, or None for any other operation.

    ``visit`` rewrites the operands. These operations are ``0 - x``, differences, and products and quotients with
    negative constants. A difference may become a negation if terms cancel.
    """
    name = compat.kind(e)
    if name not in ("Sub", "Mul", "Div", "FloorDiv") or compat.dtype_of(e) != "int32":
        return None
    if name == "Sub":
        if compat.int_value(e.b) is not None:
            return None
        a, b = visit(e.a), negated(visit(e.b))
        return b if compat.int_value(a) == 0 else DEVICE.binary(tir.Add, a, b)
    other, factor = e.a, compat.int_value(e.b)
    if name == "Mul" and factor is None:
        other, factor = e.b, compat.int_value(e.a)
    if factor is None or not _LEAST < factor < 0 or (name == "FloorDiv" and factor != -1):
        return None
    if factor == -1:
        return negated(visit(other))
    return negated(DEVICE.binary(type(e), visit(other), compat.const(-factor, "int32")))


def negated(x: Expr) -> Expr:
    """Return ``-x`` for an int32 in a kernel."""
    return compat.device_function_call("int32", NEGATED, FUNCTION, x)
