// SPDX-License-Identifier: Apache-2.0
// What a CUDA C kernel sees when g++ compiles it for the emulator: qualifiers, built-in variables, vector types,
// math, warp intrinsics, atomics. It includes no standard header, so that a kernel compiles quickly.
//
// Kernels are compiled with -fsanitize=thread: every memory access calls a hook of the runtime first. Functions that
// take a pointer or reference to user memory must stay instrumented; those that only see values are marked EMU_VALUE.
#pragma once

using int8_t = __INT8_TYPE__;
using int16_t = __INT16_TYPE__;
using int32_t = __INT32_TYPE__;
using int64_t = __INT64_TYPE__;
using uint8_t = __UINT8_TYPE__;
using uint16_t = __UINT16_TYPE__;
using uint32_t = __UINT32_TYPE__;
using uint64_t = __UINT64_TYPE__;
using size_t = __SIZE_TYPE__;
using uintptr_t = __UINTPTR_TYPE__;

#define __CUDACC_RTC__ 1
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 4

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#define EMU_VALUE __attribute__((no_sanitize_thread)) static inline
#define EMU_NOSAN __attribute__((no_sanitize_thread))

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))

// ---- the runtime's entry points ------------------------------------------------------------------------------------
struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

extern "C" {
uint3 emu_thread_idx();
uint3 emu_block_idx();
uint3 emu_block_dim();
uint3 emu_grid_dim();
uint3 emu_cluster_rank3();
uint3 emu_cluster_dim();
void* emu_shared(int id, unsigned long bytes, unsigned itemsize, unsigned align, const char* name);
void* emu_dynamic_shared();
int emu_block_barrier(int line, int op, int predicate);
void emu_grid_barrier(int line);
// What code is to take, where it is defined, for a barrier across a grid of its own.
#define CUDA_EMULATOR_GRID_BARRIER emu_grid_barrier(__LINE__)
void emu_cluster_arrive(int line, int release);
void emu_cluster_wait(int line);
void emu_fence();
void emu_wait_for_kernels_in_front();
unsigned emu_active_mask(int line);
void emu_sync_warp(int line, unsigned mask);
uint64_t emu_shuffle(int line, unsigned mask, uint64_t bits, int mode, int arg, int width);
uint64_t emu_warp_collective(int line, unsigned mask, uint64_t bits, int op);
void emu_atomic(const void* address, unsigned bytes);
void emu_atomic_done();
void emu_read(const void* address, unsigned bytes);
void emu_write(const void* address, unsigned bytes);
void emu_unsupported(int line, const char* what);
unsigned emu_to_shared(const void* p);
void* emu_from_shared(unsigned a);
unsigned emu_map_rank(unsigned a, unsigned rank);
void* emu_map_rank_generic(const void* p, unsigned rank);
void emu_mbarrier_init(unsigned at, unsigned count, int line);
void emu_mbarrier_fence();
void emu_mbarrier_expect(unsigned at, unsigned bytes, int line);
void emu_store_async(unsigned to, unsigned long long bits, unsigned bytes, unsigned at, int line);
unsigned emu_mbarrier_wait(unsigned at, unsigned parity, int line);
void emu_copy_async(unsigned to, const void* from, unsigned bytes, unsigned read);
void emu_wait_for_copies();
void emu_end_copy_group();
void emu_wait_for_copy_groups(unsigned but);
void emu_trap(int line);
}

// Built-in variables. A kernel's prologue shadows them by locals (see source.py); these serve device functions.
namespace emu {
template <uint3 (*F)(), int I>
struct Component {
  EMU_NOSAN operator unsigned() const {
    const uint3 v = F();
    return I == 0 ? v.x : I == 1 ? v.y : v.z;
  }
};
template <uint3 (*F)()>
struct Builtin {
  Component<F, 0> x;
  Component<F, 1> y;
  Component<F, 2> z;
};
}  // namespace emu
static const emu::Builtin<emu_thread_idx> threadIdx{};
static const emu::Builtin<emu_block_idx> blockIdx{};
static const emu::Builtin<emu_block_dim> blockDim{};
static const emu::Builtin<emu_grid_dim> gridDim{};
#define warpSize 32

// ---- vector types --------------------------------------------------------------------------------------------------
// The compiler instruments assignments only, not class values that a call takes or returns in memory. All class types
// here therefore copy themselves by functions of their own, in which one assignment moves the whole value.
namespace emu {
template <unsigned N> struct Bits;
template <> struct Bits<1> { typedef unsigned char __attribute__((may_alias)) type; };
template <> struct Bits<2> { typedef unsigned short __attribute__((may_alias)) type; };
template <> struct Bits<4> { typedef unsigned __attribute__((may_alias)) type; };
template <> struct Bits<8> { typedef unsigned long __attribute__((may_alias)) type; };
template <> struct Bits<16> { typedef unsigned __attribute__((vector_size(16), may_alias)) type; };
}  // namespace emu
#define EMU_COPY(SELF, N)                                                       \
  SELF() = default;                                                             \
  __attribute__((always_inline)) SELF(const SELF& o) { *this = o; }             \
  __attribute__((always_inline)) SELF& operator=(const SELF& o) {               \
    using B = emu::Bits<N>::type;                                               \
    *reinterpret_cast<B*>(this) = *reinterpret_cast<const B*>(&o);              \
    return *this;                                                               \
  }
// Twice 16 bytes.
#define EMU_COPY_PAIR(SELF)                                                             \
  SELF() = default;                                                                     \
  __attribute__((always_inline)) SELF(const SELF& o) { *this = o; }                     \
  __attribute__((always_inline)) SELF& operator=(const SELF& o) {                       \
    using B = emu::Bits<16>::type;                                                      \
    reinterpret_cast<B*>(this)[0] = reinterpret_cast<const B*>(&o)[0];                  \
    reinterpret_cast<B*>(this)[1] = reinterpret_cast<const B*>(&o)[1];                  \
    return *this;                                                                       \
  }
#define EMU_COPY_THREE(SELF)                                                            \
  SELF() = default;                                                                     \
  __attribute__((always_inline)) SELF(const SELF& o) : x(o.x), y(o.y), z(o.z) {}        \
  __attribute__((always_inline)) SELF& operator=(const SELF& o) {                       \
    x = o.x, y = o.y, z = o.z;                                                          \
    return *this;                                                                       \
  }
#define EMU_VECTOR1(NAME, T)                                                            \
  struct NAME##1 {                                                                      \
    T x;                                                                                \
    EMU_COPY(NAME##1, sizeof(T))                                                        \
    EMU_NOSAN NAME##1(T x) : x(x) {}                                                    \
  };                                                                                    \
  EMU_VALUE NAME##1 make_##NAME##1(T x) { return {x}; }
#define EMU_VECTOR2(NAME, T)                                                            \
  struct alignas(2 * sizeof(T)) NAME##2 {                                               \
    T x, y;                                                                             \
    EMU_COPY(NAME##2, 2 * sizeof(T))                                                    \
    EMU_NOSAN NAME##2(T x, T y) : x(x), y(y) {}                                         \
  };                                                                                    \
  EMU_VALUE NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }
#define EMU_VECTOR3(NAME, T)                                                            \
  struct NAME##3 {                                                                      \
    T x, y, z;                                                                          \
    EMU_COPY_THREE(NAME##3)                                                             \
    EMU_NOSAN NAME##3(T x, T y, T z) : x(x), y(y), z(z) {}                              \
  };                                                                                    \
  EMU_VALUE NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }
#define EMU_VECTOR4(NAME, T, COPY, ALIGN)                                               \
  struct alignas(ALIGN) NAME##4 {                                                       \
    T x, y, z, w;                                                                       \
    COPY                                                                                \
    EMU_NOSAN NAME##4(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}                   \
  };                                                                                    \
  EMU_VALUE NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define EMU_SMALL(NAME, T)                                                              \
  EMU_VECTOR1(NAME, T) EMU_VECTOR2(NAME, T) EMU_VECTOR3(NAME, T)                        \
  EMU_VECTOR4(NAME, T, EMU_COPY(NAME##4, 4 * sizeof(T)), 4 * sizeof(T))
#define EMU_LARGE(NAME, T)                                                              \
  EMU_VECTOR1(NAME, T) EMU_VECTOR2(NAME, T) EMU_VECTOR3(NAME, T)                        \
  EMU_VECTOR4(NAME, T, EMU_COPY_PAIR(NAME##4), 16)
EMU_SMALL(char, signed char)
EMU_SMALL(uchar, unsigned char)
EMU_SMALL(short, short)
EMU_SMALL(ushort, unsigned short)
EMU_SMALL(int, int)
EMU_SMALL(float, float)
EMU_LARGE(long, long)
EMU_LARGE(ulong, unsigned long)
EMU_LARGE(longlong, long long)
EMU_LARGE(ulonglong, unsigned long long)
EMU_LARGE(double, double)
EMU_VECTOR1(uint, unsigned)
EMU_VECTOR2(uint, unsigned)
EMU_VECTOR4(uint, unsigned, EMU_COPY(uint4, 16), 16)
EMU_VALUE uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return uint3{x, y, z}; }

// ---- math ----------------------------------------------------------------------------------------------------------
#define EMU_MATH1(NAME)                                                       \
  EMU_VALUE float NAME##f(float x) { return __builtin_##NAME##f(x); }         \
  EMU_VALUE float NAME(float x) { return __builtin_##NAME##f(x); }            \
  EMU_VALUE double NAME(double x) { return __builtin_##NAME(x); }
#define EMU_MATH2(NAME)                                                                \
  EMU_VALUE float NAME##f(float x, float y) { return __builtin_##NAME##f(x, y); }      \
  EMU_VALUE float NAME(float x, float y) { return __builtin_##NAME##f(x, y); }         \
  EMU_VALUE double NAME(double x, double y) { return __builtin_##NAME(x, y); }
#define EMU_ALL1(M) M(exp) M(exp2) M(exp10) M(expm1) M(log) M(log2) M(log10) M(log1p) M(sin) M(cos) M(tan) M(asin) \
  M(acos) M(atan) M(sinh) M(cosh) M(tanh) M(asinh) M(acosh) M(atanh) M(erf) M(erfc) M(sqrt) M(cbrt) M(fabs)        \
  M(floor) M(ceil) M(trunc) M(round) M(rint) M(nearbyint) M(tgamma) M(lgamma)
// glibc declares most of these with C linkage; builtins of the same name are overloaded in a namespace of our own.
namespace emu_math {
EMU_ALL1(EMU_MATH1)
EMU_MATH2(pow)
EMU_MATH2(fmod)
EMU_MATH2(fmax)
EMU_MATH2(fmin)
EMU_MATH2(copysign)
EMU_MATH2(atan2)
EMU_MATH2(hypot)
EMU_MATH2(remainder)
EMU_MATH2(nextafter)
EMU_VALUE double pow(double x, int y) { return __builtin_pow(x, y); }
EMU_VALUE float pow(float x, int y) { return __builtin_powf(x, float(y)); }
EMU_VALUE float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
EMU_VALUE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
EMU_VALUE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
EMU_VALUE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EMU_VALUE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EMU_VALUE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
EMU_VALUE float fdividef(float a, float b) { return a / b; }
EMU_VALUE float ldexpf(float a, int b) { return __builtin_ldexpf(a, b); }
EMU_VALUE float ldexp(float a, int b) { return __builtin_ldexpf(a, b); }
EMU_VALUE float powif(float a, int b) { return __builtin_powif(a, b); }
EMU_VALUE int abs(int x) { return x < 0 ? -x : x; }
EMU_VALUE long abs(long x) { return x < 0 ? -x : x; }
EMU_VALUE long long abs(long long x) { return x < 0 ? -x : x; }
EMU_VALUE float abs(float x) { return __builtin_fabsf(x); }
EMU_VALUE double abs(double x) { return __builtin_fabs(x); }
EMU_VALUE int labs(long x) { return x < 0 ? -x : x; }
EMU_VALUE long long llabs(long long x) { return x < 0 ? -x : x; }
EMU_VALUE bool isnan(float x) { return __builtin_isnan(x); }
EMU_VALUE bool isnan(double x) { return __builtin_isnan(x); }
EMU_VALUE bool isinf(float x) { return __builtin_isinf(x); }
EMU_VALUE bool isinf(double x) { return __builtin_isinf(x); }
EMU_VALUE bool isfinite(float x) { return __builtin_isfinite(x); }
EMU_VALUE bool isfinite(double x) { return __builtin_isfinite(x); }
EMU_VALUE bool signbit(float x) { return __builtin_signbit(x); }
EMU_VALUE long lrintf(float x) { return __builtin_lrintf(x); }
EMU_VALUE long long llrintf(float x) { return __builtin_llrintf(x); }
}  // namespace emu_math
using namespace emu_math;

#define EMU_FAST1(NAME) EMU_VALUE float __##NAME##f(float x) { return __builtin_##NAME##f(x); }
EMU_FAST1(exp) EMU_FAST1(exp10) EMU_FAST1(log) EMU_FAST1(log2) EMU_FAST1(log10) EMU_FAST1(sin) EMU_FAST1(cos) EMU_FAST1(tan)
EMU_FAST1(tanh)
EMU_VALUE float __powf(float x, float y) { return __builtin_powf(x, y); }
EMU_VALUE float __fdividef(float x, float y) { return x / y; }
EMU_VALUE float __frcp_rn(float x) { return 1.0f / x; }
EMU_VALUE float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
EMU_VALUE float __frsqrt_rn(float x) { return 1.0f / __builtin_sqrtf(x); }
EMU_VALUE float __fdiv_rn(float x, float y) { return x / y; }
EMU_VALUE float __fadd_rn(float x, float y) { return x + y; }
EMU_VALUE float __fsub_rn(float x, float y) { return x - y; }
EMU_VALUE float __fmul_rn(float x, float y) { return x * y; }
EMU_VALUE float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
EMU_VALUE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
EMU_VALUE float2 __fadd2_rn(float2 a, float2 b) { return float2{a.x + b.x, a.y + b.y}; }
EMU_VALUE float2 __fmul2_rn(float2 a, float2 b) { return float2{a.x * b.x, a.y * b.y}; }

#define EMU_MINMAX(T)                                         \
  EMU_VALUE T max(T a, T b) { return a < b ? b : a; }         \
  EMU_VALUE T min(T a, T b) { return b < a ? b : a; }
EMU_MINMAX(int) EMU_MINMAX(unsigned) EMU_MINMAX(long) EMU_MINMAX(unsigned long) EMU_MINMAX(long long)
EMU_MINMAX(unsigned long long)
EMU_VALUE float max(float a, float b) { return __builtin_fmaxf(a, b); }
EMU_VALUE float min(float a, float b) { return __builtin_fminf(a, b); }
EMU_VALUE double max(double a, double b) { return __builtin_fmax(a, b); }
EMU_VALUE double min(double a, double b) { return __builtin_fmin(a, b); }
EMU_VALUE double max(double a, float b) { return __builtin_fmax(a, b); }
EMU_VALUE double min(double a, float b) { return __builtin_fmin(a, b); }
EMU_VALUE unsigned max(unsigned a, int b) { return a < unsigned(b) ? unsigned(b) : a; }
EMU_VALUE unsigned max(int a, unsigned b) { return unsigned(a) < b ? b : unsigned(a); }
EMU_VALUE unsigned min(unsigned a, int b) { return unsigned(b) < a ? unsigned(b) : a; }
EMU_VALUE unsigned min(int a, unsigned b) { return b < unsigned(a) ? b : unsigned(a); }

template <class To, class From>
EMU_VALUE To emu_bits(From v) {
  static_assert(sizeof(To) == sizeof(From), "bit casts keep the size");
  return __builtin_bit_cast(To, v);
}
EMU_VALUE int __float_as_int(float x) { return emu_bits<int>(x); }
EMU_VALUE unsigned __float_as_uint(float x) { return emu_bits<unsigned>(x); }
EMU_VALUE float __int_as_float(int x) { return emu_bits<float>(x); }
EMU_VALUE float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
EMU_VALUE long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
EMU_VALUE double __longlong_as_double(long long x) { return emu_bits<double>(x); }
EMU_VALUE int __float2int_rn(float x) { return int(__builtin_rintf(x)); }
EMU_VALUE int __float2int_rz(float x) { return int(x); }
EMU_VALUE int __float2int_rd(float x) { return int(__builtin_floorf(x)); }
EMU_VALUE int __float2int_ru(float x) { return int(__builtin_ceilf(x)); }
EMU_VALUE float __int2float_rn(int x) { return float(x); }
EMU_VALUE int __popc(unsigned x) { return __builtin_popcount(x); }
EMU_VALUE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
EMU_VALUE int __clz(int x) { return x ? __builtin_clz(x) : 32; }
EMU_VALUE int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
EMU_VALUE int __ffs(int x) { return __builtin_ffs(x); }
EMU_VALUE int __mul24(int a, int b) { return a * b; }
EMU_VALUE int __mulhi(int a, int b) { return int((long(a) * long(b)) >> 32); }
EMU_VALUE unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * uint64_t(b)) >> 32); }
EMU_VALUE unsigned __byte_perm(unsigned a, unsigned b, unsigned selectors) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned byte = unsigned(bytes >> (8 * (selectors >> (4 * i) & 7))) & 255;
    const bool sign = selectors >> (4 * i) & 8;  // all bits become the byte's sign
    result |= (sign ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
  }
  return result;
}
EMU_VALUE int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += int(int8_t(unsigned(a) >> (8 * i))) * int(int8_t(unsigned(b) >> (8 * i)));
  return c;
}

template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldca(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
template <class T> inline void __stcg(T* p, T v) { *p = v; }
template <class T> inline void __stwt(T* p, T v) { *p = v; }

// ---- barriers, fences, warp intrinsics -----------------------------------------------------------------------------
#define __syncthreads() ((void)emu_block_barrier(__LINE__, 0, 0))
#define __syncthreads_and(p) emu_block_barrier(__LINE__, 1, (p) != 0)
#define __syncthreads_or(p) emu_block_barrier(__LINE__, 2, (p) != 0)
#define __syncthreads_count(p) emu_block_barrier(__LINE__, 3, (p) != 0)
#define __activemask() emu_active_mask(__LINE__)
#define __syncwarp(...) emu_sync_warp(__LINE__, emu::mask_or_full(__VA_ARGS__))
#define __threadfence() emu_fence()
#define __threadfence_block() ((void)0)
#define __threadfence_system() emu_fence()
#define __nanosleep(ns) ((void)(ns))
#define __trap() emu_trap(__LINE__)

namespace emu {
EMU_VALUE unsigned mask_or_full(unsigned mask = 0xffffffffu) { return mask; }
template <class T>
EMU_NOSAN inline uint64_t pack(T v) {
  static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &v, sizeof(T));
  return bits;
}
template <class T>
EMU_NOSAN inline T unpack(uint64_t bits) {
  T v;
  __builtin_memcpy(&v, &bits, sizeof(T));
  return v;
}
template <class T>
EMU_NOSAN inline T shuffle(int line, int mode, unsigned mask, T v, int arg, int width = 32) {
  return unpack<T>(emu_shuffle(line, mask, pack(v), mode, arg, width));
}
template <class T>
EMU_NOSAN inline T collective(int line, int op, unsigned mask, T v) {
  return T(emu_warp_collective(line, mask, uint64_t(int64_t(v)), op));
}
template <class T>
EMU_NOSAN inline unsigned match_any(int line, unsigned mask, T v) {
  return unsigned(emu_warp_collective(line, mask, pack(v), 9));
}
}  // namespace emu
#define __shfl_sync(...) emu::shuffle(__LINE__, 0, __VA_ARGS__)
#define __shfl_up_sync(...) emu::shuffle(__LINE__, 1, __VA_ARGS__)
#define __shfl_down_sync(...) emu::shuffle(__LINE__, 2, __VA_ARGS__)
#define __shfl_xor_sync(...) emu::shuffle(__LINE__, 3, __VA_ARGS__)
#define __all_sync(mask, p) emu::collective<int>(__LINE__, 0, mask, (p) != 0)
#define __any_sync(mask, p) emu::collective<int>(__LINE__, 1, mask, (p) != 0)
#define __ballot_sync(mask, p) emu::collective<unsigned>(__LINE__, 2, mask, (p) != 0)
#define __reduce_add_sync(mask, v) emu::collective(__LINE__, 3, mask, v)
#define __reduce_min_sync(mask, v) emu::collective(__LINE__, 4, mask, v)
#define __reduce_max_sync(mask, v) emu::collective(__LINE__, 5, mask, v)
#define __reduce_and_sync(mask, v) emu::collective(__LINE__, 6, mask, v)
#define __reduce_or_sync(mask, v) emu::collective(__LINE__, 7, mask, v)
#define __reduce_xor_sync(mask, v) emu::collective(__LINE__, 8, mask, v)
#define __match_any_sync(mask, v) emu::match_any(__LINE__, mask, v)

// ---- atomics: one OS thread runs everything, so a plain update is atomic --------------------------------------------
namespace emu {
template <class T, class F>
EMU_NOSAN inline T atomic(T* p, F update) {
  emu_atomic(p, sizeof(T));
  T old = *p;
  *p = update(old);
  emu_atomic_done();
  return old;
}
}  // namespace emu
#define EMU_ATOMIC(NAME, EXPR)                                                                            \
  template <class T, class V>                                                                             \
  EMU_NOSAN inline T NAME(T* p, V value) {                                                                \
    const T v = T(value);                                                                                 \
    return emu::atomic(p, [v](T old) EMU_NOSAN -> T { return EXPR; });                                    \
  }                                                                                                       \
  template <class T, class V> EMU_NOSAN inline T NAME##_block(T* p, V value) { return NAME(p, value); }   \
  template <class T, class V> EMU_NOSAN inline T NAME##_system(T* p, V value) { return NAME(p, value); }
EMU_ATOMIC(atomicAdd, T(old + v))
EMU_ATOMIC(atomicSub, T(old - v))
EMU_ATOMIC(atomicExch, v)
EMU_ATOMIC(atomicMax, old < v ? v : old)
EMU_ATOMIC(atomicMin, v < old ? v : old)
EMU_ATOMIC(atomicAnd, T(old & v))
EMU_ATOMIC(atomicOr, T(old | v))
EMU_ATOMIC(atomicXor, T(old ^ v))
EMU_ATOMIC(atomicInc, T(old >= v ? T(0) : T(old + 1)))
EMU_ATOMIC(atomicDec, T(old == T(0) || old > v ? v : T(old - 1)))
template <class T, class U, class V>
EMU_NOSAN inline T atomicCAS(T* p, U compare, V value) {
  const T c = T(compare), v = T(value);
  return emu::atomic(p, [c, v](T old) EMU_NOSAN -> T { return old == c ? v : old; });
}

// ---- shared memory as 32-bit addresses (PTX), calls of the runtime for known PTX instructions -----------------------
EMU_VALUE unsigned __cvta_generic_to_shared(const void* p) { return emu_to_shared(p); }
namespace emu {
template <class T>
inline T load_shared(unsigned address) { return *static_cast<T*>(emu_from_shared(address)); }
template <class T>
inline void store_shared(unsigned address, T v) { *static_cast<T*>(emu_from_shared(address)) = v; }

// A register of PTX has no type: between operands of one size, values move as bits.
template <class K, class O>
EMU_NOSAN inline O read_bits(O, K v) {
  if constexpr (sizeof(K) == sizeof(O)) return __builtin_bit_cast(O, v);
  else return O(v);
}
template <class K, class V>
EMU_NOSAN inline K to_bits(V v) {
  if constexpr (sizeof(K) == sizeof(V)) return __builtin_bit_cast(K, v);
  else return K(v);
}
template <class V, class A, class B>
inline void load_vector(const void* from, A& a, B& b) {
  const V v = *static_cast<const V*>(from);
  a = read_bits(a, v.x), b = read_bits(b, v.y);
}
template <class V, class A, class B, class C, class D>
inline void load_vector(const void* from, A& a, B& b, C& c, D& d) {
  const V v = *static_cast<const V*>(from);
  a = read_bits(a, v.x), b = read_bits(b, v.y), c = read_bits(c, v.z), d = read_bits(d, v.w);
}
template <class T, class A>
inline void load_global(const void* from, A& a) { a = read_bits(a, *static_cast<const T*>(from)); }

// ---- the kernel's entry: unpacks 8-byte argument cells, and tells the types of its parameters ------------------------
template <class T> struct Kind { static constexpr char value = T(-1) < T(0) ? 'i' : 'u'; };
template <> struct Kind<float> { static constexpr char value = 'f'; };
template <> struct Kind<double> { static constexpr char value = 'f'; };
template <> struct Kind<bool> { static constexpr char value = 'b'; };
template <class T> struct Kind<T*> { static constexpr char value = 'p'; };
template <class T> struct Pointee { static constexpr unsigned size = sizeof(T); };
template <class T> struct Pointee<T*> { static constexpr unsigned size = sizeof(T); };
template <> struct Pointee<void*> { static constexpr unsigned size = 1; };
template <int... I> struct Indices {};
template <int N, int... I> struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I> struct MakeIndices<0, I...> { using type = Indices<I...>; };
template <class T> struct Value { using type = T; };
template <class T> struct Value<const T> { using type = T; };
template <class... A, int... I>
EMU_NOSAN inline void call(void (*f)(A...), void** args, Indices<I...>) {
  f(*static_cast<typename Value<A>::type*>(args[I])...);
}
template <class... A>
EMU_NOSAN inline void call(void (*f)(A...), void** args) {
  call(f, args, typename MakeIndices<sizeof...(A)>::type());
}
// Writes, per parameter, its kind ('p' pointer, 'i', 'u', 'f', 'b') and its size (for pointers: of the pointee).
template <class... A>
EMU_NOSAN inline int signature(void (*)(A...), char* kinds, unsigned* sizes) {
  const char k[] = {Kind<typename Value<A>::type>::value..., 0};
  const unsigned s[] = {Pointee<typename Value<A>::type>::size..., 0};
  for (unsigned i = 0; i < sizeof...(A); ++i) {
    kinds[i] = k[i];
    sizes[i] = s[i];
  }
  return sizeof...(A);
}
}  // namespace emu
#define EMU_ENTRY(NAME)                                                                                          \
  extern "C" EMU_NOSAN void emu_entry_##NAME(void** args) { emu::call(NAME, args); }                             \
  extern "C" EMU_NOSAN int emu_signature_##NAME(char* kinds, unsigned* sizes) {                                  \
    return emu::signature(NAME, kinds, sizes);                                                                   \
  }
