// SPDX-License-Identifier: Apache-2.0
// Attention of float32, exact: as in attention.cuh, by multiply-adds of each thread in place of a warp's.
#ifndef TVM_STITCH_ATTENTION_FLOAT
#define TVM_STITCH_ATTENTION_FLOAT

namespace tvm_stitch {

__device__ __forceinline__ void load_four(float (&out)[4], const float* from) {
  const float4 found = *reinterpret_cast<const float4*>(from);
  out[0] = found.x, out[1] = found.y, out[2] = found.z, out[3] = found.w;
}

// The columns of a result that a thread has: `kParts` runs of `kRun` neighbours, a run of each of 16 threads in a row.
template <int kSize>
struct Columns {
  static constexpr int kRun = (kSize + 63) / 64 * 64 == (kSize + 31) / 32 * 32 ? 4 : 2;
  static constexpr int kParts = (kSize + 16 * kRun - 1) / (16 * kRun), kAll = 16 * kRun * kParts;
};

// How shared memory is laid out: lines of Q, K, V and of the weights of a tile's keys.
template <int kSize>
struct FloatLayout {
  static constexpr int kQueries = 64, kKeys = kSize > 64 ? 32 : 64;
  static constexpr int kFilled = (kSize + 3) / 4 * 4;
  // An odd number of 16 bytes: 8 lines that are read at once lie in different banks.
  static constexpr int kLine = 4 * (kFilled / 4 | 1);
  static constexpr int kValueLine = Columns<kSize>::kAll, kWeightLine = kKeys + 4;
  static constexpr int kOfKeys = kQueries * kLine, kOfValues = kOfKeys + kKeys * kLine,
                       kOfWeights = kOfValues + kKeys * kValueLine;
};

// A block has 64 queries of a head. A thread has 8 of them, and of a tile of scores every 16th key; the 16 threads that
// share its queries are of one warp.
template <class Of>
__device__ __forceinline__ void attention_of_floats(float* shared, const float* q, const float* k, const float* v,
                                                    const typename Of::MaskElement* mask, typename Of::Result* out,
                                                    int batches, int heads, int queries, int keys, int offset,
                                                    float scale, Rows of_q, Rows of_k, Rows of_v, Rows of_out,
                                                    MaskStrides of_mask) {
  using Layout = FloatLayout<Of::kSize>;
  using Own = Columns<Of::kSize>;
  constexpr int kKeys = Layout::kKeys, kLine = Layout::kLine, kScores = kKeys / 16, kRows = 8;
  constexpr int kSize = Of::kSize, kFilled = Layout::kFilled, kSums = Own::kParts * Own::kRun;
  constexpr float kLog2e = 1.4426950408889634f;
  float* const of_keys = shared + Layout::kOfKeys;
  float* const of_values = shared + Layout::kOfValues;

  const int blocks = (queries + Layout::kQueries - 1) / Layout::kQueries;
  const int first = int(blockIdx.x) % blocks * Layout::kQueries;
  const int number = int(blockIdx.x) / blocks;
  const Problem problem = {number / heads / batches, number / heads % batches, number % heads};
  const int lane = int(threadIdx.x) % 16, group = int(threadIdx.x) / 16;
  q += problem.offset(of_q);
  k += problem.offset(of_k);
  v += problem.offset(of_v);
  out += problem.offset(of_out);
  if (Of::kMask) mask += problem.offset(of_mask);
  const int end = Of::kCausal ? min(keys, first + Layout::kQueries + offset) : keys;
  const int own = first + kRows * group;                                 // the first of the thread's queries
  const bool works = first + kRows * (group / 2 * 2) < queries;          // the same in a warp
  const float* const rows_of_q = shared + kRows * group * kLine;
  float* const weights = shared + Layout::kOfWeights + kRows * group * Layout::kWeightLine;

  copy_lines<Layout::kQueries, kSize, kFilled, kLine, Of::kAligned>(shared, q, of_q.row, first, queries);
  copy_lines<kKeys, kSize, kFilled, kLine, Of::kAligned>(of_keys, k, of_k.row, 0, keys);
  end_copy_group();
  copy_lines<kKeys, kSize, Own::kAll, Layout::kValueLine, Of::kAligned>(of_values, v, of_v.row, 0, keys);
  end_copy_group();

  float sums[kRows][kSums], greatest[kRows], total[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    greatest[row] = -INFINITY, total[row] = 0.0f;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[row][i] = 0.0f;
  }

  for (int begin = 0; begin < end; begin += kKeys) {
    float scores[kRows][kScores];
    wait_for_copies_but_last();
    __syncthreads();
    if (works) {
#pragma unroll
      for (int i = 0; i < kRows * kScores; ++i) scores[i / kScores][i % kScores] = 0.0f;
#pragma unroll 4
      for (int at = 0; at < kFilled; at += 4) {
        float of_key[kScores][4];
#pragma unroll
        for (int i = 0; i < kScores; ++i) load_four(of_key[i], of_keys + (lane + 16 * i) * kLine + at);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          float of_query[4];
          load_four(of_query, rows_of_q + row * kLine + at);
#pragma unroll
          for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int i = 0; i < kScores; ++i) scores[row][i] = fmaf(of_query[e], of_key[i][e], scores[row][i]);
        }
      }
    }
    __syncthreads();
    if (begin + kKeys < end)
      copy_lines<kKeys, kSize, kFilled, kLine, Of::kAligned>(of_keys, k, of_k.row, begin + kKeys, keys);
    end_copy_group();

    if (works) {
      const float factor = scale * kLog2e;  // exponents are of two
      float added[kScores];                 // to all queries alike
      if (Of::kMask == 1) {
#pragma unroll
        for (int i = 0; i < kScores; ++i)
          added[i] = exponent_of(widened(mask[min(begin + lane + 16 * i, keys - 1) * of_mask.column]));
      }
      const bool at_edge = begin + kKeys > keys || (Of::kCausal && begin + kKeys > first + offset + 1);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const int query = own + row;
        if (Of::kMask) {
          const typename Of::MaskElement* of_query = mask + min(query, queries - 1) * of_mask.row;
#pragma unroll
          for (int i = 0; i < kScores; ++i) {
            const int key = min(begin + lane + 16 * i, keys - 1);
            scores[row][i] = fmaf(scores[row][i], factor,
                                  Of::kMask == 1 ? added[i] : exponent_of(widened(of_query[key * of_mask.column])));
          }
        }
        if (at_edge) {
#pragma unroll
          for (int i = 0; i < kScores; ++i) {
            const int key = begin + lane + 16 * i;
            if (key >= keys || (Of::kCausal && key > query + offset)) scores[row][i] = -INFINITY;
          }
        }
        float most = -INFINITY;
#pragma unroll
        for (int i = 0; i < kScores; ++i) most = fmaxf(most, scores[row][i]);
#pragma unroll
        for (int apart = 1; apart < 16; apart *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
        most = fmaxf(greatest[row], Of::kMask ? most : most * factor);
        const float from = most == -INFINITY ? 0.0f : most;  // of keys that are all masked nothing is added
        const float shrunk = power_of_two(greatest[row] - from);
        greatest[row] = most;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kScores; ++i) {
          const float weight = power_of_two(Of::kMask ? scores[row][i] - from : fmaf(scores[row][i], factor, -from));
          weights[row * Layout::kWeightLine + lane + 16 * i] = weight;
          sum += weight;
        }
        total[row] = total[row] * shrunk + sum;
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[row][i] *= shrunk;
      }
    }
    wait_for_copies_but_last();
    __syncthreads();
    if (works) {
#pragma unroll 4
      for (int at = 0; at < kKeys; at += 4) {
        float of_value[4][kSums];
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
          for (int part = 0; part < Own::kParts; ++part) {
            const float* from = of_values + (at + e) * Layout::kValueLine + Own::kRun * (16 * part + lane);
            float* to = &of_value[e][part * Own::kRun];
            if (Own::kRun == 4) {
              const float4 found = *reinterpret_cast<const float4*>(from);
              to[0] = found.x, to[1] = found.y, to[Own::kRun - 2] = found.z, to[Own::kRun - 1] = found.w;
            } else {
              const float2 found = *reinterpret_cast<const float2*>(from);
              to[0] = found.x, to[1] = found.y;
            }
          }
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          float weight[4];
          load_four(weight, weights + row * Layout::kWeightLine + at);
#pragma unroll
          for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int i = 0; i < kSums; ++i) sums[row][i] = fmaf(weight[e], of_value[e][i], sums[row][i]);
        }
      }
    }
    __syncthreads();
    if (begin + kKeys < end)
      copy_lines<kKeys, kSize, Own::kAll, Layout::kValueLine, Of::kAligned>(of_values, v, of_v.row, begin + kKeys, keys);
    end_copy_group();
  }

  if (!works) return;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float sum = total[row];
#pragma unroll
    for (int apart = 1; apart < 16; apart *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    const float inverse = sum == 0.0f && (Of::kSafe || keys == 0) ? 0.0f : 1.0f / sum;
    const int query = own + row;
    if (query >= queries) continue;
#pragma unroll
    for (int i = 0; i < kSums; i += 2) {
      const int column = Own::kRun * (16 * (i / Own::kRun) + lane) + i % Own::kRun;
      typename Of::Result* to = out + query * of_out.row + column;
      const float low = sums[row][i] * inverse, high = sums[row][i + 1] * inverse;
      if (Of::kAligned) {
        if (column < kSize) store_pair(to, low, high);
      } else {
        if (column < kSize) round_to(to[0], low);
        if (column + 1 < kSize) round_to(to[1], high);
      }
    }
  }
}

}  // namespace tvm_stitch

#endif  // TVM_STITCH_ATTENTION_FLOAT
