// SPDX-License-Identifier: Apache-2.0
// Attention of few queries: K and V are read once and wait for memory, so the keys are split over many threads.
//
// A few lanes of a warp hold one row of K or V, and multiply it by all queries that share it. So each of these groups
// of lanes has an online softmax of its own keys. The softmaxes are joined by shuffles, through shared memory, and
// between the blocks of a cluster, which share the keys of a head (this is Flash-Decoding by Dao et al., 2023, with a
// cluster in the place of a second kernel).
#ifndef TVM_STITCH_ATTENTION_FEW
#define TVM_STITCH_ATTENTION_FEW

namespace tvm_stitch {

// How lanes and shared memory are divided.
//   kRows: queries of a block, of heads that share keys. kGroup: the number of such heads.
//   kBlocks: blocks of a cluster, which split the keys.
template <class Of_, int kRows_, int kGroup_, int kBlocks_>
struct Few {
  using Of = Of_;
  using Element = typename Of::Element;
  static constexpr int kRows = kRows_, kGroup = kGroup_, kBlocks = kBlocks_;
  static constexpr int kVector = 16 / int(sizeof(Element));
  static constexpr int kEach = kVector * (Of::kSize > 32 * kVector ? 2 : 1);  // elements of a row that a lane has
  static constexpr int lanes() {
    int found = 1;
    while (found * kEach < Of::kSize) found *= 2;
    return found;
  }
  static constexpr int kLanes = lanes(), kWarps = kThreads / 32;
  static constexpr int kWide = kLanes * kEach;         // a row with what fills it up
  static constexpr int kAtOnce = kThreads / kLanes;    // rows of K that a block reads at once
  static constexpr int kAhead = kEach > kVector ? 2 : 4;  // such rows whose loads are on their way together
  static constexpr int kLine = kWide + 2;              // the greatest score and the sum of weights are the last two
  static constexpr int kFloats = (kWarps + 1) * kRows * kLine;
};

// Elements of a row that one lane has.
template <class T, int kEach>
struct alignas(16) Piece {
  T of[kEach];
};

template <class With>
__device__ __forceinline__ void load_piece(Piece<typename With::Element, With::kEach>& to,
                                           const typename With::Element* row, int column, bool there) {
  constexpr int kSize = With::Of::kSize;
  if (With::Of::kAligned) {
#pragma unroll
    for (int i = 0; i < With::kEach; i += With::kVector) {
      float4 found = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (there && column + i < kSize) found = *reinterpret_cast<const float4*>(row + column + i);
      *reinterpret_cast<float4*>(to.of + i) = found;
    }
  } else {
#pragma unroll
    for (int i = 0; i < With::kEach; ++i) {
      round_to(to.of[i], 0.0f);
      if (there && column + i < kSize) to.of[i] = row[column + i];
    }
  }
}

// Sums of weighted rows, relative to the greatest score.
template <int kEach>
struct Softmax {
  float sums[kEach], greatest, total;
};

__device__ __forceinline__ float finite_or_zero(float most) { return most == -INFINITY ? 0.0f : most; }

// A float of another block's shared memory, at the place of this block's.
__device__ __forceinline__ float of_block(const float* at, int block) {
  unsigned there;
  float found;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there) : "r"(unsigned(__cvta_generic_to_shared(at))), "r"(block));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(found) : "r"(there));
  return found;
}

__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}

// The part of the queries and keys that a block has. all: queries of heads that share keys.
template <class With>
struct Share {
  int rank, all, first, begin, end;
  Problem problem;

  __device__ __forceinline__ Share(int batches, int heads, int queries, int keys) {
    const int number = int(blockIdx.x) / With::kBlocks, apart = With::kGroup > 1 ? 1 : heads;
    rank = int(blockIdx.x) % With::kBlocks;
    all = With::kGroup * queries;
    const int tiles = (all + With::kRows - 1) / With::kRows, cell = number / tiles;
    first = number % tiles * With::kRows;
    problem = {cell / apart / batches, cell / apart % batches, cell % apart};
    const int part = (keys + With::kBlocks - 1) / With::kBlocks;
    begin = min(keys, rank * part);
    end = min(keys, begin + part);
  }
};

// Joins the sums of a block's warps, and those of the blocks of a cluster. Each thread stores some of the results.
template <class With>
__device__ __forceinline__ void join_keys(float* shared, typename With::Of::Result* out, Rows of_out, int first, int all,
                                          int queries, int keys, int rank) {
  using Of = typename With::Of;
  constexpr int kRows = With::kRows, kLine = With::kLine, kWide = With::kWide, kBlocks = With::kBlocks;
  float* const joined = shared + With::kWarps * kRows * kLine;
  for (int at = int(threadIdx.x); at < kRows * kWide; at += kThreads) {
    const int row = at / kWide, element = at % kWide;
    const float* const line = shared + row * kLine;
    float most = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll
    for (int i = 0; i < With::kWarps; ++i) most = fmaxf(most, line[i * kRows * kLine + kWide]);
#pragma unroll
    for (int i = 0; i < With::kWarps; ++i) {
      const float* const its = line + i * kRows * kLine;
      const float share = power_of_two(its[kWide] - finite_or_zero(most));
      sum += its[element] * share, total += its[kWide + 1] * share;
    }
    joined[row * kLine + element] = sum;
    if (element == 0) joined[row * kLine + kWide] = most, joined[row * kLine + kWide + 1] = total;
  }
  if (kBlocks > 1)
    meet_cluster();
  else
    __syncthreads();

  for (int at = rank * kThreads + int(threadIdx.x); at < kRows * kWide; at += kBlocks * kThreads) {
    const int row = at / kWide, element = at % kWide, index = first + row;
    if (index >= all || element >= Of::kSize) continue;
    const float* const line = joined + row * kLine;
    float sum, total;
    if (kBlocks > 1) {
      float mosts[kBlocks], sums[kBlocks], totals[kBlocks], most = -INFINITY;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        mosts[block] = of_block(line + kWide, block);
        totals[block] = of_block(line + kWide + 1, block);
        sums[block] = of_block(line + element, block);
      }
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) most = fmaxf(most, mosts[block]);
      sum = 0.0f, total = 0.0f;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float share = power_of_two(mosts[block] - finite_or_zero(most));
        sum = fmaf(sums[block], share, sum), total = fmaf(totals[block], share, total);
      }
    } else {
      sum = line[element], total = line[kWide + 1];
    }
    const float inverse = total == 0.0f && (Of::kSafe || keys == 0) ? 0.0f : 1.0f / total;
    round_to(out[index / queries * of_out.head + index % queries * of_out.row + element], sum * inverse);
  }
  if (kBlocks > 1) meet_cluster();  // others read this block's shared memory until here
}

// A block has kRows queries of heads that share keys, and a part of the keys.
template <class With>
__device__ __forceinline__ void attention_few(float* shared, const typename With::Element* q,
                                              const typename With::Element* k, const typename With::Element* v,
                                              const typename With::Of::MaskElement* mask,
                                              typename With::Of::Result* out, int batches, int heads, int queries,
                                              int keys, int offset, float scale, Rows of_q, Rows of_k, Rows of_v,
                                              Rows of_out, MaskStrides of_mask) {
  using Of = typename With::Of;
  constexpr int kRows = With::kRows, kEach = With::kEach, kLanes = With::kLanes, kAhead = With::kAhead;
  constexpr int kLine = With::kLine, kWide = With::kWide;
  const Share<With> share(batches, heads, queries, keys);
  const int all = share.all, first = share.first, begin = share.begin, end = share.end;
  const Problem problem = share.problem;
  q += problem.offset(of_q);
  k += problem.offset(of_k);
  v += problem.offset(of_v);
  out += problem.offset(of_out);
  if (Of::kMask) mask += problem.offset(of_mask);
  const int lane = int(threadIdx.x) % kLanes, group = int(threadIdx.x) / kLanes, column = lane * kEach;
  const int warp = int(threadIdx.x) / 32;

  float of_query[kRows][kEach];
  int last[kRows];  // the last key that a query sees
  const typename Of::MaskElement* masks[kRows];
  Softmax<kEach> own[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const int index = min(first + row, all - 1), head = index / queries, query = index % queries;
    Piece<typename With::Element, kEach> piece;
    load_piece<With>(piece, q + head * of_q.head + query * of_q.row, column, true);
#pragma unroll
    for (int i = 0; i < kEach; ++i) of_query[row][i] = widened(piece.of[i]), own[row].sums[i] = 0.0f;
    own[row].greatest = -INFINITY, own[row].total = 0.0f;
    last[row] = Of::kCausal ? min(query + offset, keys - 1) : keys - 1;
    masks[row] = Of::kMask ? mask + head * of_mask.head + query * of_mask.row : mask;
  }

  const float factor = scale * 1.4426950408889634f;  // exponents are of two
  for (int base = begin; base < end; base += With::kAtOnce * kAhead) {
    Piece<typename With::Element, kEach> of_key[kAhead], of_value[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int key = base + i * With::kAtOnce + group;
      load_piece<With>(of_key[i], k + (key < end ? key : begin) * of_k.row, column, key < end);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int key = base + i * With::kAtOnce + group;
      load_piece<With>(of_value[i], v + (key < end ? key : begin) * of_v.row, column, key < end);
    }
    float scores[kRows][kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) scores[row][i] = 0.0f;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const float element = widened(of_key[i].of[e]);
#pragma unroll
        for (int row = 0; row < kRows; ++row) scores[row][i] = fmaf(of_query[row][e], element, scores[row][i]);
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row)
#pragma unroll
        for (int step = 1; step < kLanes; step *= 2)
          scores[row][i] += __shfl_xor_sync(0xffffffffu, scores[row][i], step);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int key = base + i * With::kAtOnce + group;
      const long long at = (key < end ? key : begin) * of_mask.column;
      const float common = Of::kMask == 1 ? exponent_of(widened(masks[0][at])) : 0.0f;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        float& score = scores[row][i];
        score = Of::kMask == 0   ? score * factor
                : Of::kMask == 1 ? fmaf(score, factor, common)
                                 : fmaf(score, factor, exponent_of(widened(masks[row][at])));
        if (key >= end || key > last[row]) score = -INFINITY;
      }
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float most = own[row].greatest;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) most = fmaxf(most, scores[row][i]);
      const float from = finite_or_zero(most), shrunk = power_of_two(own[row].greatest - from);
      own[row].greatest = most;
      own[row].total *= shrunk;
#pragma unroll
      for (int e = 0; e < kEach; ++e) own[row].sums[e] *= shrunk;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const float weight = power_of_two(scores[row][i] - from);
        own[row].total += weight;
#pragma unroll
        for (int e = 0; e < kEach; ++e)
          own[row].sums[e] = fmaf(weight, widened(of_value[i].of[e]), own[row].sums[e]);
      }
    }
  }

#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    Softmax<kEach>& of = own[row];
#pragma unroll
    for (int step = kLanes; step < 32; step *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, of.greatest, step);
      const float most = fmaxf(of.greatest, other), from = finite_or_zero(most);
      const float mine = power_of_two(of.greatest - from), its = power_of_two(other - from);
      of.greatest = most;
      of.total = of.total * mine + __shfl_xor_sync(0xffffffffu, of.total, step) * its;
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        of.sums[e] = of.sums[e] * mine + __shfl_xor_sync(0xffffffffu, of.sums[e], step) * its;
    }
    float* const line = shared + (warp * kRows + row) * kLine;
    if (int(threadIdx.x) % 32 < kLanes) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) line[column + e] = of.sums[e];
      if (lane == 0) line[kWide] = of.greatest, line[kWide + 1] = of.total;
    }
  }
  __syncthreads();

  join_keys<With>(shared, out, of_out, first, all, queries, keys, share.rank);
}

}  // namespace tvm_stitch

#endif  // TVM_STITCH_ATTENTION_FEW
