// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's cuda_fp16.h that generated kernels use.
#pragma once
#include "emu_half.h"
EMU_HALF_TYPE(__half, emu::half_from_float, emu::half_to_float)
EMU_HALF_MIXED(__half, float)
EMU_HALF_MIXED(__half, int)
EMU_HALF2_TYPE(__half2, __half)
using half = __half;
using half2 = __half2;
EMU_VALUE float __half2float(__half a) { return emu::half_to_float(a.__x); }
EMU_VALUE __half __float2half(float f) { return emu_make___half(f); }
EMU_VALUE __half __float2half_rn(float f) { return emu_make___half(f); }
EMU_VALUE __half __double2half(double f) { return emu_make___half(static_cast<float>(f)); }
EMU_VALUE __half __int2half_rn(int v) { return emu_make___half(static_cast<float>(v)); }
EMU_VALUE __half __uint2half_rn(unsigned v) { return emu_make___half(static_cast<float>(v)); }
EMU_VALUE __half __ll2half_rn(long long v) { return emu_make___half(static_cast<float>(v)); }
EMU_VALUE int __half2int_rz(__half a) { return static_cast<int>(emu::half_to_float(a.__x)); }
EMU_VALUE int __half2int_rn(__half a) { return static_cast<int>(__builtin_rintf(emu::half_to_float(a.__x))); }
EMU_VALUE __half2 __floats2half2_rn(float a, float b) { return __half2(__float2half(a), __float2half(b)); }
EMU_VALUE __half2 __float22half2_rn(float2 a) { return __half2(__float2half(a.x), __float2half(a.y)); }
EMU_VALUE float2 __half22float2(__half2 a) { return float2{__half2float(a.x), __half2float(a.y)}; }
EMU_VALUE __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
EMU_VALUE __half2 __half2half2(__half a) { return __half2(a, a); }
EMU_VALUE __half2 make_half2(__half a, __half b) { return __half2(a, b); }
EMU_VALUE __half2 __float2half2_rn(float a) { return __half2(__float2half(a), __float2half(a)); }
EMU_VALUE __half __low2half(__half2 a) { return a.x; }
EMU_VALUE __half __high2half(__half2 a) { return a.y; }
EMU_VALUE unsigned short __half_as_ushort(__half a) { return a.__x; }
EMU_VALUE short __half_as_short(__half a) { return static_cast<short>(a.__x); }
EMU_VALUE __half __ushort_as_half(unsigned short v) {
  __half r;
  r.__x = v;
  return r;
}
