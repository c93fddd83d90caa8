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


def _function(name: str, maximum: bool, dtype: str) -> str:
    chosen = f"x {'>' if maximum else '<'} y || x != x ? x : y"
    ctype, instruction = dtype.replace("32", "").replace("float64", "double"), "max" if maximum else "min"
    if dtype == "float64":
        return f"__forceinline__ __device__ {ctype} {name}({ctype} x, {ctype} y) {{\n  return {chosen};\n}}\n"
    return f"""
__forceinline__ __device__ {ctype} {name}({ctype} x, {ctype} y) {{
#if __CUDA_ARCH__ >= 800
  {ctype} result;
  asm("{instruction}.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
#else
  return {chosen};
#endif
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
