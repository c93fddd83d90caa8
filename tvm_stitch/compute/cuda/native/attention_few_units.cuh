// SPDX-License-Identifier: Apache-2.0
// Attention of few queries on matrix units: 16 queries of heads that share keys are the rows of a tile.
//
// Each warp reads its own keys and values from memory into registers, once. The order of a head's elements in a product is
// free, so four lanes have neighbouring vectors of a key, and what a lane loads at once are its factors of two products. Of
// values, a lane has the same vector of four keys: its elements belong to different columns of the result.
#ifndef TVM_STITCH_ATTENTION_FEW_UNITS
#define TVM_STITCH_ATTENTION_FEW_UNITS

namespace tvm_stitch {

// How lanes and shared memory are divided.
//   kTiles: tiles of 16 queries of a block, of heads that share keys. kGroup: the number of such heads.
//   kBlocks: blocks of a cluster, which split the keys. kWarps: warps of a block.
template <class Of_, int kTiles_, int kGroup_, int kBlocks_, int kWarps_>
struct FewOnUnits {
  using Of = Of_;
  using Element = typename Of::Element;
  static constexpr int kTiles = kTiles_, kRows = 16 * kTiles, kGroup = kGroup_, kBlocks = kBlocks_;
  static constexpr int kPieces = (Of::kSize + 31) / 32;  // vectors of a key that a lane has
  static constexpr int kParts = (Of::kSize + 63) / 64;   // vectors of a value that a lane has
  static constexpr int kWide = 64 * kParts, kLine = kWide + 2;
  static constexpr int kWarps = kWarps_, kThreads = 32 * kWarps;
  static constexpr int kAhead = kTiles * kParts > 2 ? 1 : 2;  // groups of 16 keys whose loads are on their way together
};

template <class With>
__device__ __forceinline__ uint4 vector_of(const typename With::Element* row, int column, bool there) {
  uint4 found = make_uint4(0, 0, 0, 0);
  if (there && column < With::Of::kSize) found = *reinterpret_cast<const uint4*>(row + column);
  return found;
}

__device__ __forceinline__ unsigned word_of(const uint4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

template <class With>
__device__ __forceinline__ void attention_few_units(float* shared, const typename With::Element* q,
                                                    const typename With::Element* k, const typename With::Element* v,
                                                    const typename With::Of::MaskElement* mask,
                                                    typename With::Of::Result* out, int batches, int heads, int queries,
                                                    int keys, int offset, float scale, Rows of_q, Rows of_k, Rows of_v,
                                                    Rows of_out, MaskStrides of_mask) {
  using Of = typename With::Of;
  using Element = typename With::Element;
  constexpr int kTiles = With::kTiles, kPieces = With::kPieces, kParts = With::kParts, kAhead = With::kAhead;
  constexpr int kRows = With::kRows, kLine = With::kLine, kWide = With::kWide, kWarps = With::kWarps;
  if (With::kBlocks > 1) join_cluster();
  const Share<With> share(batches, heads, queries, keys);
  const int all = share.all, first = share.first, begin = share.begin, end = share.end;
  const Problem problem = share.problem;
  q += problem.offset(of_q);
  k += problem.offset(of_k);
  v += problem.offset(of_v);
  out += problem.offset(of_out);
  if (Of::kMask) mask += problem.offset(of_mask);
  const int warp = int(threadIdx.x) / 32, across = int(threadIdx.x) % 32 / 4, quarter = int(threadIdx.x) % 4;

  uint4 of_query[kTiles][2][kPieces];
  int last[kTiles][2];  // the last key that a query sees
  const typename Of::MaskElement* masks[kTiles][2];
  float greatest[kTiles][2], total[kTiles][2], sums[kTiles][kParts][8][4];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int index = min(first + 16 * tile + 8 * half + across, all - 1), head = index / queries;
      const int query = index % queries;
      const Element* row = q + head * of_q.head + query * of_q.row;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) of_query[tile][half][i] = vector_of<With>(row, 32 * i + 8 * quarter, true);
      last[tile][half] = Of::kCausal ? min(query + offset, keys - 1) : keys - 1;
      masks[tile][half] = Of::kMask ? mask + head * of_mask.head + query * of_mask.row : mask;
      greatest[tile][half] = -INFINITY, total[tile][half] = 0.0f;
#pragma unroll
      for (int i = 0; i < kParts; ++i)
#pragma unroll
        for (int e = 0; e < 8; ++e) sums[tile][i][e][2 * half] = sums[tile][i][e][2 * half + 1] = 0.0f;
    }

  const float factor = scale * 1.4426950408889634f;  // exponents are of two
  for (int base = begin + 16 * warp; base < end; base += 16 * kWarps * kAhead) {
    uint4 of_key[kAhead][2][kPieces], of_value[kAhead][4][kParts];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        const int key = base + 16 * kWarps * i + 8 * eight + across;
        const Element* row = k + (key < end ? key : begin) * of_k.row;
#pragma unroll
        for (int j = 0; j < kPieces; ++j) of_key[i][eight][j] = vector_of<With>(row, 32 * j + 8 * quarter, key < end);
      }
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int key = base + 16 * kWarps * i + 8 * (n / 2) + 2 * quarter + n % 2;
        const Element* row = v + (key < end ? key : begin) * of_v.row;
#pragma unroll
        for (int j = 0; j < kParts; ++j) of_value[i][n][j] = vector_of<With>(row, 64 * j + 8 * across, key < end);
      }

#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float scores[kAhead][2][4];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
          float(&c)[4] = scores[i][eight];
          c[0] = c[1] = c[2] = c[3] = 0.0f;
#pragma unroll
          for (int j = 0; j < kPieces; ++j) {
            const uint4 low = of_query[tile][0][j], high = of_query[tile][1][j], of = of_key[i][eight][j];
            const unsigned before[4] = {low.x, high.x, low.y, high.y}, behind[4] = {low.z, high.z, low.w, high.w};
            multiply_add(c, before, of.x, of.y, Element());
            multiply_add(c, behind, of.z, of.w, Element());
          }
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int key = base + 16 * kWarps * i + 8 * eight + 2 * quarter + e % 2, half = e / 2;
            const long long at = (key < end ? key : begin) * of_mask.column;
            c[e] = Of::kMask == 0 ? c[e] * factor : fmaf(c[e], factor, exponent_of(widened(masks[tile][half][at])));
            if (key >= end || key > last[tile][half]) c[e] = -INFINITY;
          }
        }
      float from[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = greatest[tile][half];
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
#pragma unroll
          for (int eight = 0; eight < 2; ++eight)
            most = fmaxf(most, fmaxf(scores[i][eight][2 * half], scores[i][eight][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        from[half] = finite_or_zero(most);
        const float shrunk = power_of_two(greatest[tile][half] - from[half]);
        greatest[tile][half] = most;
        total[tile][half] *= shrunk;
#pragma unroll
        for (int j = 0; j < kParts; ++j)
#pragma unroll
          for (int e = 0; e < 8; ++e) sums[tile][j][e][2 * half] *= shrunk, sums[tile][j][e][2 * half + 1] *= shrunk;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        unsigned weights[4];
#pragma unroll
        for (int eight = 0; eight < 2; ++eight)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float low = power_of_two(scores[i][eight][2 * half] - from[half]);
            const float high = power_of_two(scores[i][eight][2 * half + 1] - from[half]);
            total[tile][half] += low + high;
            weights[2 * eight + half] = packed<Element>(low, high);
          }
#pragma unroll
        for (int j = 0; j < kParts; ++j)
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const unsigned order = e % 2 ? 0x7632 : 0x5410;
            const unsigned low = __byte_perm(word_of(of_value[i][0][j], e / 2), word_of(of_value[i][1][j], e / 2), order);
            const unsigned high = __byte_perm(word_of(of_value[i][2][j], e / 2), word_of(of_value[i][3][j], e / 2), order);
            multiply_add(sums[tile][j][e], weights, low, high, Element());
          }
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = total[tile][half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      float* const line = shared + (warp * kRows + 16 * tile + 8 * half + across) * kLine;
#pragma unroll
      for (int j = 0; j < kParts; ++j)
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          line[64 * j + 16 * quarter + e] = sums[tile][j][e][2 * half];
          line[64 * j + 16 * quarter + 8 + e] = sums[tile][j][e][2 * half + 1];
        }
      if (quarter == 0) line[kWide] = greatest[tile][half], line[kWide + 1] = sum;
    }
  __syncthreads();
  join_keys<With>(shared, out, of_out, first, all, queries, keys, share.rank);
}

}  // namespace tvm_stitch

#endif  // TVM_STITCH_ATTENTION_FEW_UNITS
