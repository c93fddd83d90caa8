# SPDX-License-Identifier: Apache-2.0
"""Maxima and minima of floats that propagate NaN, as device functions.

From sm_80 on, the GPU's instruction has a form that keeps NaN. No C function gives this form for float32.

Fault: TVM writes maxima and minima of floats as CUDA's ``max`` and ``min``, which drop a NaN.
Seen in: TVM 0.27.0
Input: ``R.maximum(x, y)`` of float32 with x = NaN and y = 1, target cuda
Upstream: https://github.com/apache/tvm/issues/19518
"""

from __future__ import annotations

from ... import compat
from ...compat import Expr


def extremum_statement(result: str, maximum: bool, x: str, y: str) -> str:
    """Return C that assigns the maximum or minimum of two float32 to a variable. It is NaN if one of them is.

    Operands are variables or numbers.
    """
    instruction, compared = ("max", ">") if maximum else ("min", "<")
    return f"""#if __CUDA_ARCH__ >= 800
  asm("{instruction}.NaN.f32 %0, %1, %2;" : "=f"({result}) : "f"({x}), "f"({y}));
#else
  {result} = {x} {compared} {y} || {x} != {x} ? {x} : {y};
#endif"""


def _function(name: str, maximum: bool, dtype: str) -> str:
    if dtype == "float64":
        chosen = f"x {'>' if maximum else '<'} y || x != x ? x : y"
        return f"__forceinline__ __device__ double {name}(double x, double y) {{\n  return {chosen};\n}}\n"
    return f"""
__forceinline__ __device__ float {name}(float x, float y) {{
  float result;
{extremum_statement("result", maximum, "x", "y")}
  return result;
}}
"""


NAMES = {
    (maximum, dtype): f"tvm_stitch_{'maximum' if maximum else 'minimum'}{end}"
    for dtype, end in (("float32", ""), ("float64", "_double"))
    for maximum in (True, False)
}
FUNCTIONS = {name: _function(name, maximum, dtype) for (maximum, dtype), name in NAMES.items()}
"""Sources of the device functions by name."""


def maximum_or_minimum(maximum: bool, a: Expr, b: Expr) -> Expr:
    """Return the maximum or minimum of two float32 or float64 in a kernel, which is NaN if one of them is."""
    dtype = compat.dtype_of(a)
    name = NAMES[maximum, dtype]
    return compat.device_function_call(dtype, name, FUNCTIONS[name], a, b)
