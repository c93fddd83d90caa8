# SPDX-License-Identifier: Apache-2.0
"""Powers of float32 with bases of either sign, as a device function.

With ``--use_fast_math`` CUDA's ``powf`` is two to the power of y * log2(x), which is NaN for every negative x, and for
x of 1 and y of 0 beside infinities. Here it is called with the magnitude of x, and C's rules are applied to the result.
"""

from __future__ import annotations

from .. import compat
from ..compat import Expr, T, tir

POWER = "tvm_stitch_power"
"""Name of the device function; its arguments and result are float32."""

FUNCTION = f"""
__forceinline__ __device__ float {POWER}(float x, float y) {{
  float power = powf(fabsf(x), y);
  power = x == 1.0f || y == 0.0f || (x == -1.0f && fabsf(y) > 3e38f) ? 1.0f : power;
  bool whole = truncf(y) == y;
  bool odd = whole && truncf(0.5f * y) != 0.5f * y;
  power = x < 0.0f && x * 0.0f == 0.0f && !whole ? __int_as_float(0x7fffffff) : power;
  return __float_as_int(x) < 0 && odd ? -power : power;
}}
"""


def power(x: Expr, y: Expr) -> Expr:
    """``x`` to the power of ``y``, both float32, in a kernel."""
    if compat.HAS_RELAX_TIRX:
        return T.cuda.func_call(POWER, x, y, source_code=FUNCTION, return_type="float32")
    return tir.call_pure_extern("float32", POWER, x, y)
