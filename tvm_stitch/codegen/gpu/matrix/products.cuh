// SPDX-License-Identifier: Apache-2.0
// Products of 16 rows of weights by few factors on matrix units. A lane converts fields of its words to a half type,
// exactly and two at once: a field in the mantissa of a number of known exponent is that number plus the field.
#ifndef TVM_STITCH_PRODUCTS
#define TVM_STITCH_PRODUCTS
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tvm_stitch {

__device__ __forceinline__ void multiply_add_tile(float* c, const unsigned (&a)[4], unsigned b0, unsigned b1, half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_add_tile(float* c, const unsigned (&a)[4], unsigned b0, unsigned b1,
                                                  __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned less(unsigned pair, int offset, half) {
  const __half2 found = __hsub2(*reinterpret_cast<const __half2*>(&pair), __float2half2_rn(float(offset)));
  return *reinterpret_cast<const unsigned*>(&found);
}

__device__ __forceinline__ unsigned less(unsigned pair, int offset, __nv_bfloat16) {
  const __nv_bfloat162 found =
      __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&pair), __floats2bfloat162_rn(float(offset), float(offset)));
  return *reinterpret_cast<const unsigned*>(&found);
}

// (x & mask) ^ exponent as one instruction. Compilers make two of it, since an instruction has one constant.
__device__ __forceinline__ unsigned masked(unsigned x, unsigned mask, unsigned exponent) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(x), "r"(mask), "r"(exponent));
  return result;
}

template <class T>
struct IsHalf {
  static constexpr bool kTrue = false;
};
template <>
struct IsHalf<half> {
  static constexpr bool kTrue = true;
};

// Pairs of weights in a lane's words: pair j of 2 or 4 bits has the fields j and j plus half a word, pairs of 8 bits have
// neighbouring fields. kZero is subtracted from unsigned fields. Signed ones get 2^(kBits - 1) added before.
template <class Element, int kBits, bool kSigned, int kZero>
struct Pairs {
  static constexpr bool kHalf = IsHalf<Element>::kTrue;
  static constexpr int kOffset = (kHalf ? 1024 : 128) + kZero + (kSigned ? 1 << (kBits - 1) : 0);

  __device__ static __forceinline__ unsigned of(const unsigned* words, int j) {
    constexpr unsigned kField = (1u << kBits) - 1, kMask = kField << 16 | kField;
    constexpr unsigned kFlip = kSigned ? 0x00010001u << (kBits - 1) : 0, kExponent = kHalf ? 0x64006400u : 0x43004300u;
    return less(masked(words[0] >> (kBits * j), kMask, kExponent ^ kFlip), kOffset, Element());
  }
};

template <bool kSigned, int kZero>
struct Pairs<half, 8, kSigned, kZero> {
  static constexpr int kOffset = 1024 + kZero + (kSigned ? 128 : 0);

  __device__ static __forceinline__ unsigned of(const unsigned* words, int j) {
    const unsigned word = words[j / 2] ^ (kSigned ? 0x80808080u : 0);
    return less(__byte_perm(word, 0x64646464u, j % 2 ? 0x4342 : 0x4140), kOffset, half());
  }
};

template <bool kSigned, int kZero>
struct Pairs<__nv_bfloat16, 8, kSigned, kZero> {  // which has no mantissa for 8 bits: by float
  static constexpr float kOffset = 8388608.f + kZero + (kSigned ? 128 : 0);

  __device__ static __forceinline__ unsigned of(const unsigned* words, int j) {
    const unsigned word = words[j / 2] ^ (kSigned ? 0x80808080u : 0), low = j % 2 * 2;
    const float a = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + low)) - kOffset;
    const float b = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7441 + low)) - kOffset;
    const __nv_bfloat162 found = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&found);
  }
};

template <class Element, bool kSigned, int kZero>
struct Pairs<Element, 16, kSigned, kZero> {
  __device__ static __forceinline__ unsigned of(const unsigned* words, int j) { return words[j]; }
};

// The pairs of a lane's words less its zero points: constant ones, and the group's own.
template <class Of, bool kOwnZero, class Element>
__device__ __forceinline__ unsigned pair_of(const unsigned* words, int j, int zero) {
  const unsigned pair = Of::of(words, j);
  return kOwnZero ? less(pair, zero, Element()) : pair;
}

// Adds to c the products of a lane's next weights of two rows, in the words low and high, by the factors at x.
//   c: kTiles fragments of sums.
//   x: an octet of factors, in the order of the pairs. The next octet is x_apart elements further, the octet of the next
//     fragment tile_apart.
template <class Element, int kBits, bool kSigned, int kZero, bool kOwnZero, int kTiles>
__device__ __forceinline__ void add_products(float* c, const unsigned* low, const unsigned* high, int low_zero,
                                             int high_zero, const void* x, int x_apart, int tile_apart) {
  using Of = Pairs<Element, kBits, kSigned, kZero>;
  constexpr int kOctets = kBits == 2 ? 2 : 1;
#pragma unroll
  for (int octet = 0; octet < kOctets; ++octet) {
    unsigned a[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i / 2][i % 2 * 2] = pair_of<Of, kOwnZero, Element>(low, 4 * octet + i, low_zero);
      a[i / 2][i % 2 * 2 + 1] = pair_of<Of, kOwnZero, Element>(high, 4 * octet + i, high_zero);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 b = *reinterpret_cast<const uint4*>(static_cast<const Element*>(x) + octet * x_apart + tile * tile_apart);
      multiply_add_tile(c + 4 * tile, a[0], b.x, b.y, Element());
      multiply_add_tile(c + 4 * tile, a[1], b.z, b.w, Element());
    }
  }
}

// Loads that stay where they are written: compilers would move those of scales behind the first products.
template <int kBytes>
__device__ __forceinline__ void load_early(void* to, const void* from) {
  unsigned* words = static_cast<unsigned*>(to);
  if constexpr (kBytes == 2) {
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(*static_cast<unsigned short*>(to)) : "l"(from));
  } else if constexpr (kBytes == 4) {
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(words[0]) : "l"(from));
  } else if constexpr (kBytes == 8) {
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(from));
  } else {
    asm volatile("ld.global.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(from));
  }
}

__device__ __forceinline__ void fetch_line(const void* at) { asm volatile("prefetch.global.L2 [%0];" : : "l"(at)); }
// Copy 16 bytes of weights to shared memory in the background. If `bytes` is 0, write zeros instead.
__device__ __forceinline__ void copy_weights(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               : : "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void take_weights(void* to, const void* from) {
  const uint4 found = *static_cast<const uint4*>(from);
  unsigned* const words = static_cast<unsigned*>(to);
  words[0] = found.x, words[1] = found.y, words[2] = found.z, words[3] = found.w;
}
__device__ __forceinline__ void put_sum(void* sums, int at, float value) { static_cast<float*>(sums)[at] = value; }
__device__ __forceinline__ float get_sum(const void* sums, int at) { return static_cast<const float*>(sums)[at]; }
}  // namespace tvm_stitch
#endif
