# SPDX-License-Identifier: Apache-2.0
"""Functions of float32 as device functions, where ``--use_fast_math`` makes CUDA's too inexact, or they are slow.

``expf`` and divisions stay as they are: only a few of their last places are wrong. The formulas are those of fdlibm
and Cody and Waite, with Taylor coefficients where the intervals are short enough.

Fault: TVM compiles CUDA C with ``--use_fast_math``. ``tanhf`` is then right to 11 bits, and ``logf`` loses all digits
    near 1. ``sinf`` and ``cosf`` are wrong for large angles, and ``powf`` is NaN for every negative base.
Seen in: TVM 0.27.0
Input: ``R.tanh(x)`` of float32, target cuda
Upstream: https://github.com/apache/tvm/issues/19546
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import compat
from ...compat import Expr
from ...graph.classify import DEVICE_FUNCTION
from .nan_extrema import extremum_statement

_POWER = """
__forceinline__ __device__ float tvm_stitch_pow(float x, float y) {
  if (y == 2.0f || y == 3.0f) return y == 2.0f ? x * x : x * x * x;
  float a = fabsf(x);
  float power = powf(a, y);
  power = x == 1.0f || y == 0.0f || (x == -1.0f && fabsf(y) > 3e38f) ? 1.0f : power;
  bool whole = truncf(y) == y;
  bool odd = whole && truncf(0.5f * y) != 0.5f * y;
  power = x < 0.0f && x * 0.0f == 0.0f && !whole ? __int_as_float(0x7fffffff) : power;
  return __float_as_int(x) < 0 && odd ? -power : power;
}
"""

# Up to 0.3 the sixth term of the series, which is left out, is less than half a last place.
_TANH_OF_EXPONENTIAL = """  float a = fabsf(x), z = x * x;
  float large = (1.0f - e) / (1.0f + e);
  float series = fmaf(z, fmaf(z, fmaf(z, 2.18694885e-2f, -5.39682540e-2f), 1.33333333e-1f), -3.33333333e-1f);
  float small = fmaf(a * z, series, a);
  float found = a < 0.3f ? small : large;
  return __float_as_int(x) < 0 ? -found : found;
}
"""

_TANH = f"""
__forceinline__ __device__ float tvm_stitch_tanh(float x) {{
  float e = expf(-2.0f * fabsf(x));
{_TANH_OF_EXPONENTIAL}"""

# The same with the exponential given, so that a kernel can compute several exponentials at once.
_TANH_WITH = f"""
__forceinline__ __device__ float tvm_stitch_tanh_with(float x, float e) {{
{_TANH_OF_EXPONENTIAL}"""

ERF_NUMERATOR = (
    1.1283791453580836, 0.19078404417915384, 0.05279031249838429, 0.0037796173408765708,
    0.00028480857874120893, 2.0419666345031405e-06,
)  # fmt: skip
ERF_DENOMINATOR = (
    1.0, 0.5024106765164523, 0.11425760864755743, 0.014997454595514235, 0.0011652142560463568,
    3.800403042478137e-05,
)  # fmt: skip
"""erf(x) / x is the quotient of these polynomials of x^2 on |x| <= 3.93, 2e-8 relative.

It is a minimax fit by Lawson iteration. All coefficients are positive, so nothing cancels. Further out the quotient
times x exceeds 1: by 2e-8 at 3.95, and by 1.2e-5 at 4.5.
"""


def _horner(coefficients: Sequence[float]) -> str:
    """Return a polynomial of ``z`` in C, given from the constant on."""
    value = f"{coefficients[-1]!r}f"
    for coefficient in reversed(coefficients[:-1]):
        value = f"fmaf(z, {value}, {coefficient!r}f)"
    return value


# CUDA's function takes other coefficients below 1 than above it. The nine selections of an element run at half speed.
_ERF = f"""
__forceinline__ __device__ float tvm_stitch_erf(float x) {{
  float a = fabsf(x), found;
{extremum_statement("a", False, "a", "4.5f")}
  float z = a * a;
  float p = {_horner(ERF_NUMERATOR)};
  float q = {_horner(ERF_DENOMINATOR)};
  found = a * p / q;
{extremum_statement("found", False, "found", "1.0f")}
  return copysignf(found, x);
}}
"""

# Up to 2^16 quarters of a circle, pi/2 is a sum of three float32 numbers. Beyond that, the reduction is that of Payne
# and Hanek. There x is an integer of 24 bits times a power of 2. 96 bits of 2/pi decide over the quarter and its rest.
# The first word of ``ratio`` has the bits in front of the binary point.
_QUARTERS = """
  float n, r;
  if (fabsf(x) < 102943.0f) {
    n = rintf(x * 0.636619772f);
    r = fmaf(n, -1.57079601e+00f, x);
    r = fmaf(n, -3.13916473e-07f, r);
    r = fmaf(n, -5.39030253e-15f, r);
  } else {
    static const unsigned int ratio[8] = {0x00000000u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                          0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
    typedef unsigned long long wide;
    int bits = __float_as_int(x) & 0x7fffffff;
    int first = (bits >> 23) - 120, word = first >> 5 & 7, shift = first & 31;
    word = word > 4 ? 4 : word;
    wide whole = (bits & 0x007fffff) | 0x00800000, parts[3];
    for (int i = 0; i < 3; ++i) {
      wide pair = (wide)ratio[word + i] << 32 | ratio[word + i + 1];
      parts[i] = whole * (pair << shift >> 32);
    }
    wide circle = (parts[0] << 32) + parts[1] + (parts[2] >> 32);
    int quarter = (int)((circle + (1ull << 61)) >> 62);
    float rest = (float)((double)(long long)(circle - ((wide)quarter << 62)) * 3.4061215800865545e-19);
    n = (float)(x < 0.0f ? -quarter : quarter);
    r = x < 0.0f ? -rest : rest;
    r = bits >= 0x7f800000 ? __int_as_float(0x7fffffff) : r;
  }
  float z = r * r;
  float s = fmaf(r * z, fmaf(z, fmaf(z, -1.9515295891e-4f, 8.3321608736e-3f), -1.6666654611e-1f), r);
  float c = fmaf(z * z, fmaf(z, fmaf(z, 2.4433157118e-5f, -1.3887316255e-3f), 4.1666645683e-2f), fmaf(z, -0.5f, 1.0f));
"""

_SIN = f"""
__forceinline__ __device__ float tvm_stitch_sin(float x) {{{_QUARTERS}
  int q = (int)n;
  float found = q & 1 ? c : s;
  return q & 2 ? -found : found;
}}
"""

_COS = f"""
__forceinline__ __device__ float tvm_stitch_cos(float x) {{{_QUARTERS}
  int q = (int)n + 1;
  float found = q & 1 ? c : s;
  return q & 2 ? -found : found;
}}
"""

_TAN = f"""
__forceinline__ __device__ float tvm_stitch_tan(float x) {{{_QUARTERS}
  return (int)n & 1 ? -c / s : s / c;
}}
"""

# x is 2^e * (1 + f), and 1 + f lies between the square roots of 1/2 and 2.
# The logarithm of 1 + f is 2 atanh(f / (2 + f)).
# Denormals are recognised by their bits, because they are 0 to the device's arithmetic.
_LOG = """
__forceinline__ __device__ float tvm_stitch_{name}(float x) {{
  int own = __float_as_int(x), bits = own, e = 0;
  if (own > 0 && own < 0x00800000) {{
    bits = __float_as_int((float)own);
    e = -149;
  }}
  int more = (bits - 0x3f3504f3) >> 23;
  float f = __int_as_float(bits - (more << 23)) - 1.0f;
  e += more;
  float t = f / (2.0f + f), z = t * t;
  float r = z * fmaf(z, fmaf(z, fmaf(z, 2.22222222e-1f, 2.85714286e-1f), 4.0e-1f), 6.66666667e-1f);
  float found = fmaf((float)e, {high}f, fmaf((float)e, {low}f, {scale}f * (f - t * (f - r))));
  float limit = __int_as_float((own & 0x7fffffff) == 0 ? 0xff800000 : own == 0x7f800000 ? own : 0x7fffffff);
  return own > 0 && own < 0x7f800000 ? found : limit;
}}
"""
_LOGARITHMS = {
    "log": ("0.693145752", "1.42860677e-6", "1.0"),
    "log2": ("1.0", "0.0", "1.44269504"),
    "log10": ("0.301029205", "7.90488e-7", "0.434294482"),
}
"""For each logarithm, its value of 2 as the sum of two numbers, and its value of e."""

FUNCTIONS = {
    "pow": _POWER,
    "tanh": _TANH,
    "tanh_with": _TANH_WITH,
    "sin": _SIN,
    "cos": _COS,
    "tan": _TAN,
    "erf": _ERF,
    **{
        name: _LOG.format(name=name, high=high, low=low, scale=scale)
        for name, (high, low, scale) in _LOGARITHMS.items()
    },
}
"""Sources of the device functions, by the calls that they replace. Arguments and results are float32."""


def device_name(name: str) -> str:
    """Return the name of the device function for a call."""
    return DEVICE_FUNCTION + name


def device_call(name: str, *operands: Expr) -> Expr:
    """Return a call's value in a kernel. ``name`` is one of ``FUNCTIONS``, and the operands are float32."""
    return compat.device_function_call("float32", device_name(name), FUNCTIONS[name], *operands)
