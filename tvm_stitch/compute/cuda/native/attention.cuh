// SPDX-License-Identifier: Apache-2.0
// Attention in one kernel: softmax(scale * Q K^T + mask) V, with tiles of scores that never leave the registers.
//
// The softmax is an online one (Milakov and Gimelshein, 2018; the tiling is FlashAttention's, Dao et al., 2022): of each
// row it keeps the greatest score so far and the sum of exponentials relative to it, and what has been added up is
// scaled down when a greater score comes.
#ifndef TVM_STITCH_ATTENTION
#define TVM_STITCH_ATTENTION

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tvm_stitch {

// Distances in elements. Elements of a row of Q, K, V and the result are neighbours; mask elements need not be.
struct Rows {
  long long outer, batch, head, row;
};

struct MaskStrides {
  long long outer, batch, head, row, column;
};

// Which of the problems a block works at.
struct Problem {
  int outer, batch, head;
  template <class Strides>
  __device__ __forceinline__ long long offset(const Strides& of) const {
    return outer * of.outer + batch * of.batch + head * of.head;
  }
};

// What a kernel is compiled for.
//   Element, Result, MaskElement: of Q, K and V; of the result; of the mask.
//   kSize: elements of a head. kTiles: tiles of 16 queries that a warp has.
//   kMask: 0 none, 1 the same for all queries, 2 one of each score.
//   kCausal: query i sees the keys up to i + offset.
//   kSafe: a query whose scores are all -inf has the result 0, else NaN.
//   kAligned: all rows begin at multiples of 16 bytes.
template <class Element_, class Result_, class MaskElement_, int kSize_, int kTiles_, int kMask_, bool kCausal_,
          bool kSafe_, bool kAligned_>
struct Traits {
  using Element = Element_;
  using Result = Result_;
  using MaskElement = MaskElement_;
  static constexpr int kSize = kSize_, kTiles = kTiles_, kMask = kMask_;
  static constexpr bool kCausal = kCausal_, kSafe = kSafe_, kAligned = kAligned_;
};

constexpr int kThreads = 128;
constexpr int kKeys = 64;  // of a tile

// A power of two, to 2 units in the last place.
__device__ __forceinline__ float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ void load_matrices(unsigned (&out)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_transposed(unsigned (&out)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                             __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned bits_of(half x) { return __half_as_ushort(x); }
__device__ __forceinline__ unsigned bits_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ void round_to(half& out, float x) { out = __float2half_rn(x); }
__device__ __forceinline__ void round_to(__nv_bfloat16& out, float x) { out = __float2bfloat16_rn(x); }
__device__ __forceinline__ void round_to(float& out, float x) { out = x; }
__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(half x) { return __half2float(x); }
__device__ __forceinline__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

// What is added to exponents of two in the place of `added`; what is finite stays so.
__device__ __forceinline__ float exponent_of(float added) {
  constexpr float kMost = 3.4028234664e38f;
  const float scaled = added * 1.4426950408889634f;
  return fabsf(added) <= kMost ? fminf(fmaxf(scaled, -kMost), kMost) : scaled;
}

template <class T>
__device__ __forceinline__ unsigned packed(float low, float high) {
  T first, second;
  round_to(first, low);
  round_to(second, high);
  return bits_of(first) | bits_of(second) << 16;
}

// Begins to copy `kRows` rows from `first` on to lines of shared memory, which are filled up with 0 to `kFilled`; rows that
// are not there become 0.
template <int kRows, int kSize, int kFilled, int kLine, bool kAligned, class T>
__device__ __forceinline__ void copy_lines(T* to, const T* from, long long stride, int first, int rows) {
  constexpr int kEach = 16 / sizeof(T), kChunks = kFilled / kEach, kAll = kRows * kChunks, kOfWord = kEach / 4;
#pragma unroll
  for (int i = 0; i < (kAll + kThreads - 1) / kThreads; ++i) {
    const int at = int(threadIdx.x) + i * kThreads, row = first + at / kChunks, column = at % kChunks * kEach;
    if (kAll % kThreads != 0 && at >= kAll) continue;
    const bool there = row < rows && column < kSize;
    const T* source = there ? from + row * stride + column : from;
    T* target = to + at / kChunks * kLine + column;
    if (kAligned) {
      copy_in_background(target, source, there ? 16 : 0);
    } else {
      unsigned words[4] = {0, 0, 0, 0};
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        if (there && column + e < kSize) words[e / kOfWord] |= bits_of(source[e]) << (e % kOfWord * 16);
      *reinterpret_cast<uint4*>(target) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// 64 rows in shared memory. Each has 16 bytes of padding: the eight rows that ldmatrix reads at once then lie in different
// banks.
template <class T, int kSize, bool kAligned>
struct Lines {
  static constexpr int kWidth = (kSize + 15) / 16 * 16, kLine = kWidth + 8, kElements = kKeys * kLine;

  static __device__ __forceinline__ void copy(T* to, const T* from, long long stride, int first, int rows) {
    copy_lines<kKeys, kSize, kWidth, kLine, kAligned>(to, from, stride, first, rows);
  }
};

__device__ __forceinline__ void store_pair(half* to, float low, float high) {
  *reinterpret_cast<unsigned*>(to) = packed<half>(low, high);
}
__device__ __forceinline__ void store_pair(__nv_bfloat16* to, float low, float high) {
  *reinterpret_cast<unsigned*>(to) = packed<__nv_bfloat16>(low, high);
}
__device__ __forceinline__ void store_pair(float* to, float low, float high) {
  *reinterpret_cast<float2*>(to) = make_float2(low, high);
}

// The blocks of 64 * kTiles queries of each head follow each other. A warp has 16 * kTiles queries, a thread of each tile
// of scores those that mma gives it: two rows, of which four threads share each.
//   shared: Q, and twice K and V: while one pair is read, the next one is copied.
//   scale: of the scores, positive.
template <class Of>
__device__ __forceinline__ void attention(typename Of::Element* shared, const typename Of::Element* q,
                                          const typename Of::Element* k, const typename Of::Element* v,
                                          const typename Of::MaskElement* mask, typename Of::Result* out, int batches,
                                          int heads, int queries, int keys, int offset, float scale, Rows of_q,
                                          Rows of_k, Rows of_v, Rows of_out, MaskStrides of_mask) {
  using Element = typename Of::Element;
  using Tile = Lines<Element, Of::kSize, Of::kAligned>;
  constexpr int kTiles = Of::kTiles, kSteps = Tile::kWidth / 16, kLine = Tile::kLine;
  constexpr bool kQueriesStay = kTiles * kSteps <= 8;  // in registers; else they are read again for each tile of keys
  constexpr float kLog2e = 1.4426950408889634f;
  Element* const keys_and_values = shared + kTiles * Tile::kElements;

  const int blocks = (queries + 64 * kTiles - 1) / (64 * kTiles);
  const int first = int(blockIdx.x) % blocks * (64 * kTiles);
  const int number = int(blockIdx.x) / blocks;
  const Problem problem = {number / heads / batches, number / heads % batches, number % heads};
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, group = lane / 4, pair = lane % 4 * 2;
  q += problem.offset(of_q);
  k += problem.offset(of_k);
  v += problem.offset(of_v);
  out += problem.offset(of_out);
  if (Of::kMask) mask += problem.offset(of_mask);
  const int end = Of::kCausal ? min(keys, first + 64 * kTiles + offset) : keys;

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
    Tile::copy(shared + tile * Tile::kElements, q, of_q.row, first + 64 * tile, queries);
  Tile::copy(keys_and_values, k, of_k.row, 0, keys);
  Tile::copy(keys_and_values + Tile::kElements, v, of_v.row, 0, keys);

  unsigned queries_of[kQueriesStay ? kTiles : 1][kQueriesStay ? kSteps : 1][4];
  const unsigned base_q =
      unsigned(__cvta_generic_to_shared(shared)) + 2 * ((16 * warp * kTiles + lane % 16) * kLine + lane / 16 * 8);
  float sums[kTiles][2 * kSteps][4], greatest[kTiles][2], total[kTiles][2];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 8 * kSteps; ++i) sums[tile][i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int row = 0; row < 2; ++row) greatest[tile][row] = -INFINITY, total[tile][row] = 0.0f;
  }
  const bool works = first + 16 * warp * kTiles < queries;

  int stage = 0;
  for (int begin = 0; begin < end; begin += kKeys, stage ^= 1) {
    wait_for_copies();
    __syncthreads();
    if (begin + kKeys < end) {
      Element* const next = keys_and_values + (stage ^ 1) * 2 * Tile::kElements;
      Tile::copy(next, k, of_k.row, begin + kKeys, keys);
      Tile::copy(next + Tile::kElements, v, of_v.row, begin + kKeys, keys);
    }
    if (!works) continue;
    if (kQueriesStay && begin == 0) {
#pragma unroll
      for (int i = 0; i < (kQueriesStay ? kTiles * kSteps : 0); ++i)
        load_matrices(queries_of[i / kSteps][i % kSteps], base_q + 2 * (16 * (i / kSteps) * kLine + 16 * (i % kSteps)));
    }
    const unsigned base_k =
        unsigned(__cvta_generic_to_shared(keys_and_values + stage * 2 * Tile::kElements));
    const unsigned base_v = base_k + 2 * Tile::kElements;

    float scores[kTiles][kKeys / 8][4];
#pragma unroll
    for (int i = 0; i < kTiles * kKeys / 2; ++i) scores[i / (kKeys / 2)][i / 4 % (kKeys / 8)][i % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      unsigned a[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (kQueriesStay) {
#pragma unroll
          for (int e = 0; e < 4; ++e) a[tile][e] = queries_of[kQueriesStay ? tile : 0][kQueriesStay ? step : 0][e];
        } else {
          load_matrices(a[tile], base_q + 2 * (16 * tile * kLine + 16 * step));
        }
      }
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) {
        unsigned b[4];
        load_matrices(b, base_k + 2 * ((16 * i + lane / 16 * 8 + lane % 8) * kLine + 16 * step + lane / 8 % 2 * 8));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply_add(scores[tile][2 * i], a[tile], b[0], b[1], Element());
          multiply_add(scores[tile][2 * i + 1], a[tile], b[2], b[3], Element());
        }
      }
    }

    float added[kKeys / 4];  // to all queries alike
    if (Of::kMask == 1) {
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i)
        added[i] = exponent_of(widened(mask[min(begin + i / 2 * 8 + pair + i % 2, keys - 1) * of_mask.column]));
    }
    const bool at_edge = begin + kKeys > keys || (Of::kCausal && begin + kKeys > first + offset + 1);
    // Exponents are of two. Without a mask scores are scaled where the exponential takes them, in one instruction.
    const float factor = scale * kLog2e;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int query = first + 16 * (warp * kTiles + tile) + group + 8 * row;
        float most = -INFINITY;
        if (Of::kMask) {
          const typename Of::MaskElement* of_query = mask + min(query, queries - 1) * of_mask.row;
#pragma unroll
          for (int i = 0; i < kKeys / 4; ++i) {
            float& score = scores[tile][i / 2][2 * row + i % 2];
            const int key = min(begin + i / 2 * 8 + pair + i % 2, keys - 1);
            score = fmaf(score, factor, Of::kMask == 1 ? added[i] : exponent_of(widened(of_query[key * of_mask.column])));
          }
        }
        if (at_edge) {
#pragma unroll
          for (int i = 0; i < kKeys / 4; ++i) {
            const int key = begin + i / 2 * 8 + pair + i % 2;
            if (key >= keys || (Of::kCausal && key > query + offset)) scores[tile][i / 2][2 * row + i % 2] = -INFINITY;
          }
        }
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) most = fmaxf(most, scores[tile][i / 2][2 * row + i % 2]);
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        most = fmaxf(greatest[tile][row], Of::kMask ? most : most * factor);
        const float from = most == -INFINITY ? 0.0f : most;  // of keys that are all masked nothing is added
        const float shrunk = power_of_two(greatest[tile][row] - from);
        greatest[tile][row] = most;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) {
          float& score = scores[tile][i / 2][2 * row + i % 2];
          score = power_of_two(Of::kMask ? score - from : fmaf(score, factor, -from));
          sum += score;
        }
        total[tile][row] = total[tile][row] * shrunk + sum;
#pragma unroll
        for (int i = 0; i < 4 * kSteps; ++i) sums[tile][i / 2][2 * row + i % 2] *= shrunk;
      }

#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      unsigned weights[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          const float* pair_of = &scores[tile][2 * i + part / 2][part % 2 * 2];
          weights[tile][part] = packed<Element>(pair_of[0], pair_of[1]);
        }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        unsigned b[4];
        load_transposed(b, base_v + 2 * ((16 * i + lane % 16) * kLine + 16 * step + lane / 16 * 8));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply_add(sums[tile][2 * step], weights[tile], b[0], b[1], Element());
          multiply_add(sums[tile][2 * step + 1], weights[tile], b[2], b[3], Element());
        }
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = total[tile][row];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float inverse = sum == 0.0f && (Of::kSafe || keys == 0) ? 0.0f : 1.0f / sum;
      const int query = first + 16 * (warp * kTiles + tile) + group + 8 * row;
      if (query >= queries) continue;
      typename Of::Result* to = out + query * of_out.row + pair;
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) {
        const float low = sums[tile][i][2 * row] * inverse, high = sums[tile][i][2 * row + 1] * inverse;
        if (Of::kAligned) {
          if (8 * i < Of::kSize) store_pair(to + 8 * i, low, high);
        } else {
          if (8 * i + pair < Of::kSize) round_to(to[8 * i], low);
          if (8 * i + pair + 1 < Of::kSize) round_to(to[8 * i + 1], high);
        }
      }
    }
}

}  // namespace tvm_stitch

#endif  // TVM_STITCH_ATTENTION
