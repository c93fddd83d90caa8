// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's cuda_bf16.h that generated kernels use.
#pragma once
#include "emu_half.h"
EMU_HALF_TYPE(__nv_bfloat16, emu::bf16_from_float, emu::bf16_to_float)
EMU_HALF_MIXED(__nv_bfloat16, float)
EMU_HALF_MIXED(__nv_bfloat16, int)
EMU_HALF2_TYPE(__nv_bfloat162, __nv_bfloat16)
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
EMU_VALUE float __bfloat162float(__nv_bfloat16 a) { return emu::bf16_to_float(a.__x); }
EMU_VALUE __nv_bfloat16 __float2bfloat16(float f) { return emu_make___nv_bfloat16(f); }
EMU_VALUE __nv_bfloat16 __float2bfloat16_rn(float f) { return emu_make___nv_bfloat16(f); }
EMU_VALUE __nv_bfloat16 __double2bfloat16(double f) { return emu_make___nv_bfloat16(static_cast<float>(f)); }
EMU_VALUE __nv_bfloat16 __int2bfloat16_rn(int v) { return emu_make___nv_bfloat16(static_cast<float>(v)); }
EMU_VALUE int __bfloat162int_rz(__nv_bfloat16 a) { return static_cast<int>(emu::bf16_to_float(a.__x)); }
EMU_VALUE __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return __nv_bfloat162(__float2bfloat16(a), __float2bfloat16(b));
}
EMU_VALUE __nv_bfloat162 __float22bfloat162_rn(float2 a) {
  return __nv_bfloat162(__float2bfloat16(a.x), __float2bfloat16(a.y));
}
EMU_VALUE float2 __bfloat1622float2(__nv_bfloat162 a) { return float2{__bfloat162float(a.x), __bfloat162float(a.y)}; }
EMU_VALUE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }
EMU_VALUE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return __nv_bfloat162(a, a); }
EMU_VALUE __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
EMU_VALUE __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
EMU_VALUE unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return a.__x; }
EMU_VALUE __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) {
  __nv_bfloat16 r;
  r.__x = v;
  return r;
}
