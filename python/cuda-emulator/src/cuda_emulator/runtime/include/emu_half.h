// SPDX-License-Identifier: Apache-2.0
// What cuda_fp16.h and cuda_bf16.h have in common: one macro that defines a 16-bit type, its operators and functions.
//
// Each operation rounds once to the 16-bit type after a float computation, as CUDA's own functions do: a float holds
// more than twice the precision of either type, so that + - * / sqrt are correctly rounded.
#pragma once

namespace emu {
template <class A, class B> struct Same {};
template <class A> struct Same<A, A> { using type = A; };
EMU_VALUE unsigned short half_from_float(float f) { return __builtin_bit_cast(unsigned short, static_cast<_Float16>(f)); }
EMU_VALUE float half_to_float(unsigned short h) { return static_cast<float>(__builtin_bit_cast(_Float16, h)); }
EMU_VALUE unsigned short bf16_from_float(float f) {
  const unsigned u = __builtin_bit_cast(unsigned, f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // CUDA's canonical NaN
  return static_cast<unsigned short>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
EMU_VALUE float bf16_to_float(unsigned short h) { return __builtin_bit_cast(float, unsigned(h) << 16); }
}  // namespace emu

// Constructors and conversions touch `this`, which may be user memory: they stay instrumented.
#define EMU_HALF_TYPE(T, FROM, TO)                                                                              \
  struct alignas(2) T {                                                                                         \
    unsigned short __x;                                                                                         \
    EMU_COPY(T, 2)                                                                                              \
    /* Templates, because a copy constructor from volatile would make the type non-trivial. */                  \
    template <class U, class = typename emu::Same<U, T>::type> T(const volatile U& o) : __x(o.__x) {}           \
    template <class U> void operator=(const U& o) volatile { __x = T(o).__x; }                                  \
    T(char v) : __x(FROM(static_cast<float>(v))) {}                                                             \
    T(float f) : __x(FROM(f)) {}                                                                                \
    T(double f) : __x(FROM(static_cast<float>(f))) {}                                                           \
    T(int v) : __x(FROM(static_cast<float>(v))) {}                                                              \
    T(unsigned v) : __x(FROM(static_cast<float>(v))) {}                                                         \
    T(long v) : __x(FROM(static_cast<float>(v))) {}                                                             \
    T(unsigned long v) : __x(FROM(static_cast<float>(v))) {}                                                    \
    T(long long v) : __x(FROM(static_cast<float>(v))) {}                                                        \
    T(unsigned long long v) : __x(FROM(static_cast<float>(v))) {}                                               \
    T(short v) : __x(FROM(static_cast<float>(v))) {}                                                            \
    T(unsigned short v) : __x(FROM(static_cast<float>(v))) {}                                                   \
    T(signed char v) : __x(FROM(static_cast<float>(v))) {}                                                      \
    T(unsigned char v) : __x(FROM(static_cast<float>(v))) {}                                                    \
    T(bool v) : __x(FROM(v ? 1.0f : 0.0f)) {}                                                                   \
    operator float() const { return TO(__x); }                                                                  \
    explicit operator double() const { return TO(__x); }                                                        \
    explicit operator int() const { return static_cast<int>(TO(__x)); }                                         \
    explicit operator unsigned() const { return static_cast<unsigned>(TO(__x)); }                               \
    explicit operator long() const { return static_cast<long>(TO(__x)); }                                       \
    explicit operator unsigned long() const { return static_cast<unsigned long>(TO(__x)); }                     \
    explicit operator long long() const { return static_cast<long long>(TO(__x)); }                             \
    explicit operator unsigned long long() const { return static_cast<unsigned long long>(TO(__x)); }           \
    explicit operator short() const { return static_cast<short>(TO(__x)); }                                     \
    explicit operator unsigned short() const { return static_cast<unsigned short>(TO(__x)); }                   \
    explicit operator signed char() const { return static_cast<signed char>(TO(__x)); }                         \
    explicit operator char() const { return static_cast<char>(TO(__x)); }                                       \
    explicit operator unsigned char() const { return static_cast<unsigned char>(TO(__x)); }                     \
    explicit operator bool() const { return TO(__x) != 0.0f; }                                                  \
    T& operator+=(T o) { return *this = T(TO(__x) + TO(o.__x)); }                                               \
    T& operator-=(T o) { return *this = T(TO(__x) - TO(o.__x)); }                                               \
    T& operator*=(T o) { return *this = T(TO(__x) * TO(o.__x)); }                                               \
    T& operator/=(T o) { return *this = T(TO(__x) / TO(o.__x)); }                                               \
  };                                                                                                            \
  EMU_VALUE T emu_make_##T(float f) {                                                                           \
    T r;                                                                                                        \
    r.__x = FROM(f);                                                                                            \
    return r;                                                                                                   \
  }                                                                                                             \
  EMU_VALUE float emu_float(T a) { return TO(a.__x); }                                                          \
  EMU_VALUE T operator+(T a, T b) { return emu_make_##T(TO(a.__x) + TO(b.__x)); }                               \
  EMU_VALUE T operator-(T a, T b) { return emu_make_##T(TO(a.__x) - TO(b.__x)); }                               \
  EMU_VALUE T operator*(T a, T b) { return emu_make_##T(TO(a.__x) * TO(b.__x)); }                               \
  EMU_VALUE T operator/(T a, T b) { return emu_make_##T(TO(a.__x) / TO(b.__x)); }                               \
  EMU_VALUE T operator-(T a) {                                                                                  \
    a.__x ^= 0x8000;                                                                                            \
    return a;                                                                                                   \
  }                                                                                                             \
  EMU_VALUE T operator+(T a) { return a; }                                                                      \
  EMU_VALUE bool operator<(T a, T b) { return TO(a.__x) < TO(b.__x); }                                          \
  EMU_VALUE bool operator>(T a, T b) { return TO(a.__x) > TO(b.__x); }                                          \
  EMU_VALUE bool operator<=(T a, T b) { return TO(a.__x) <= TO(b.__x); }                                        \
  EMU_VALUE bool operator>=(T a, T b) { return TO(a.__x) >= TO(b.__x); }                                        \
  EMU_VALUE bool operator==(T a, T b) { return TO(a.__x) == TO(b.__x); }                                        \
  EMU_VALUE bool operator!=(T a, T b) { return TO(a.__x) != TO(b.__x); }                                        \
  EMU_VALUE bool __hlt(T a, T b) { return TO(a.__x) < TO(b.__x); }                                              \
  EMU_VALUE bool __hgt(T a, T b) { return TO(a.__x) > TO(b.__x); }                                              \
  EMU_VALUE bool __hle(T a, T b) { return TO(a.__x) <= TO(b.__x); }                                             \
  EMU_VALUE bool __hge(T a, T b) { return TO(a.__x) >= TO(b.__x); }                                             \
  EMU_VALUE bool __heq(T a, T b) { return TO(a.__x) == TO(b.__x); }                                             \
  EMU_VALUE bool __hne(T a, T b) { return TO(a.__x) != TO(b.__x); }                                             \
  EMU_VALUE T __hadd(T a, T b) { return a + b; }                                                                \
  EMU_VALUE T __hsub(T a, T b) { return a - b; }                                                                \
  EMU_VALUE T __hmul(T a, T b) { return a * b; }                                                                \
  EMU_VALUE T __hdiv(T a, T b) { return a / b; }                                                                \
  EMU_VALUE T __hfma(T a, T b, T c) {                                                                           \
    return emu_make_##T(static_cast<float>(double(TO(a.__x)) * double(TO(b.__x)) + double(TO(c.__x))));         \
  }                                                                                                             \
  EMU_VALUE T __hneg(T a) { return -a; }                                                                        \
  EMU_VALUE T __habs(T a) {                                                                                     \
    a.__x &= 0x7fff;                                                                                            \
    return a;                                                                                                   \
  }                                                                                                             \
  EMU_VALUE T __hmax(T a, T b) { return emu_make_##T(__builtin_fmaxf(TO(a.__x), TO(b.__x))); }                  \
  EMU_VALUE T __hmin(T a, T b) { return emu_make_##T(__builtin_fminf(TO(a.__x), TO(b.__x))); }                  \
  EMU_VALUE bool __hisnan(T a) { return __builtin_isnan(TO(a.__x)); }                                           \
  EMU_VALUE int __hisinf(T a) { return __builtin_isinf_sign(TO(a.__x)); }                                       \
  EMU_VALUE T hexp(T a) { return emu_make_##T(__builtin_expf(TO(a.__x))); }                                     \
  EMU_VALUE T hexp2(T a) { return emu_make_##T(__builtin_exp2f(TO(a.__x))); }                                   \
  EMU_VALUE T hexp10(T a) { return emu_make_##T(__builtin_exp10f(TO(a.__x))); }                                 \
  EMU_VALUE T hlog(T a) { return emu_make_##T(__builtin_logf(TO(a.__x))); }                                     \
  EMU_VALUE T hlog2(T a) { return emu_make_##T(__builtin_log2f(TO(a.__x))); }                                   \
  EMU_VALUE T hlog10(T a) { return emu_make_##T(__builtin_log10f(TO(a.__x))); }                                 \
  EMU_VALUE T hsin(T a) { return emu_make_##T(__builtin_sinf(TO(a.__x))); }                                     \
  EMU_VALUE T hcos(T a) { return emu_make_##T(__builtin_cosf(TO(a.__x))); }                                     \
  EMU_VALUE T hsqrt(T a) { return emu_make_##T(__builtin_sqrtf(TO(a.__x))); }                                   \
  EMU_VALUE T hrsqrt(T a) { return emu_make_##T(1.0f / __builtin_sqrtf(TO(a.__x))); }                           \
  EMU_VALUE T hrcp(T a) { return emu_make_##T(1.0f / TO(a.__x)); }                                              \
  EMU_VALUE T hfloor(T a) { return emu_make_##T(__builtin_floorf(TO(a.__x))); }                                 \
  EMU_VALUE T hceil(T a) { return emu_make_##T(__builtin_ceilf(TO(a.__x))); }                                   \
  EMU_VALUE T htrunc(T a) { return emu_make_##T(__builtin_truncf(TO(a.__x))); }                                 \
  EMU_VALUE T hrint(T a) { return emu_make_##T(__builtin_rintf(TO(a.__x))); }                                   \
  namespace emu {                                                                                               \
  template <> struct Kind<T> { static constexpr char value = 'h'; };                                            \
  }

// Mixed arithmetic (half and float or int): CUDA's implicit conversions make it float arithmetic.
#define EMU_HALF_MIXED(T, S)                                                        \
  EMU_VALUE float operator+(T a, S b) { return emu_float(a) + float(b); }           \
  EMU_VALUE float operator+(S a, T b) { return float(a) + emu_float(b); }           \
  EMU_VALUE float operator-(T a, S b) { return emu_float(a) - float(b); }           \
  EMU_VALUE float operator-(S a, T b) { return float(a) - emu_float(b); }           \
  EMU_VALUE float operator*(T a, S b) { return emu_float(a) * float(b); }           \
  EMU_VALUE float operator*(S a, T b) { return float(a) * emu_float(b); }           \
  EMU_VALUE float operator/(T a, S b) { return emu_float(a) / float(b); }           \
  EMU_VALUE float operator/(S a, T b) { return float(a) / emu_float(b); }           \
  EMU_VALUE bool operator<(T a, S b) { return emu_float(a) < float(b); }            \
  EMU_VALUE bool operator<(S a, T b) { return float(a) < emu_float(b); }            \
  EMU_VALUE bool operator>(T a, S b) { return emu_float(a) > float(b); }            \
  EMU_VALUE bool operator>(S a, T b) { return float(a) > emu_float(b); }            \
  EMU_VALUE bool operator==(T a, S b) { return emu_float(a) == float(b); }          \
  EMU_VALUE bool operator!=(T a, S b) { return emu_float(a) != float(b); }

#define EMU_HALF2_TYPE(T2, T)                                                                              \
  struct alignas(4) T2 {                                                                                   \
    T x, y;                                                                                                \
    EMU_COPY(T2, 4)                                                                                        \
    T2(T a, T b) : x(a), y(b) {}                                                                           \
  };                                                                                                       \
  EMU_VALUE T2 operator+(T2 a, T2 b) { return T2(a.x + b.x, a.y + b.y); }                                  \
  EMU_VALUE T2 operator-(T2 a, T2 b) { return T2(a.x - b.x, a.y - b.y); }                                  \
  EMU_VALUE T2 operator*(T2 a, T2 b) { return T2(a.x * b.x, a.y * b.y); }                                  \
  EMU_VALUE T2 operator/(T2 a, T2 b) { return T2(a.x / b.x, a.y / b.y); }                                  \
  EMU_VALUE T2 __hadd2(T2 a, T2 b) { return a + b; }                                                       \
  EMU_VALUE T2 __hsub2(T2 a, T2 b) { return a - b; }                                                       \
  EMU_VALUE T2 __hmul2(T2 a, T2 b) { return a * b; }                                                       \
  EMU_VALUE T2 __hfma2(T2 a, T2 b, T2 c) { return T2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }      \
  EMU_VALUE T2 __hmax2(T2 a, T2 b) { return T2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }                      \
  EMU_VALUE T2 __hmin2(T2 a, T2 b) { return T2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }                      \
  EMU_VALUE T __low2##T2(T2 a) { return a.x; }                                                             \
  EMU_VALUE T __high2##T2(T2 a) { return a.y; }

#include "emu_matrix.h"
