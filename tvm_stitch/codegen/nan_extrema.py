# SPDX-License-Identifier: Apache-2.0
"""Maxima and minima of floats that propagate NaN, as device functions.

CUDA's ``fmaxf`` drops a NaN. From sm_80 on the same instruction has a form that keeps it, which no C function gives for
float32.
"""

from __future__ import annotations

from .. import compat
from ..compat import Expr


def _function(name: str, ctype: str, sign: str, instruction: str) -> str:
    chosen = f"x {sign} y || x != x ? x : y"
    if not instruction:
        return f"__forceinline__ __device__ {ctype} {name}({ctype} x, {ctype} y) {{\n  return {chosen};\n}}\n"
    return f"""
__forceinline__ __device__ {ctype} {name}({ctype} x, {ctype} y) {{
#if __CUDA_ARCH__ >= 800
  {ctype} result;
  asm("{instruction} %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
#else
  return {chosen};
#endif
}}
"""


NAMES = {
    (True, "float32"): "tvm_stitch_maximum",
    (False, "float32"): "tvm_stitch_minimum",
    (True, "float64"): "tvm_stitch_maximum_double",
    (False, "float64"): "tvm_stitch_minimum_double",
}
FUNCTIONS = {
    "tvm_stitch_maximum": _function("tvm_stitch_maximum", "float", ">", "max.NaN.f32"),
    "tvm_stitch_minimum": _function("tvm_stitch_minimum", "float", "<", "min.NaN.f32"),
    "tvm_stitch_maximum_double": _function("tvm_stitch_maximum_double", "double", ">", ""),
    "tvm_stitch_minimum_double": _function("tvm_stitch_minimum_double", "double", "<", ""),
}
"""The device functions by name."""


def maximum_or_minimum(maximum: bool, a: Expr, b: Expr) -> Expr:
    """The maximum or minimum of two float32 or float64 in a kernel; NaN if one of them is."""
    dtype = compat.dtype_of(a)
    name = NAMES[maximum, dtype]
    return compat.device_function_call(dtype, name, FUNCTIONS[name], a, b)
