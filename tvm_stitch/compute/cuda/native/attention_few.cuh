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
//   kBlocks: blocks of a cluster, which split the keys. kWarps: warps of a block.
template <class Of_, int kRows_, int kGroup_, int kBlocks_, int kWarps_>
struct Few {
  using Of = Of_;
  using Element = typename Of::Element;
  static constexpr int kRows = kRows_, kGroup = kGroup_, kBlocks = kBlocks_;
  static constexpr int kWarps = kWarps_, kThreads = 32 * kWarps;
  static constexpr int kVector = 16 / int(sizeof(Element));
  static constexpr int kEach = kVector * (Of::kSize > 32 * kVector ? 2 : 1);  // elements of a row that a lane has
  static constexpr int lanes() {
    int found = 1;
    while (found * kEach < Of::kSize) found *= 2;
    return found;
  }
  static constexpr int kLanes = lanes();
  static constexpr int kWide = kLanes * kEach;         // a row with what fills it up
  static constexpr int kAtOnce = kThreads / kLanes;    // rows of K that a block reads at once
  static constexpr int kAhead = kEach > kVector ? 2 : 4;  // such rows whose loads are on their way together
  static constexpr int kLine = kWide + 2;              // the greatest score and the sum of weights are the last two
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

// Puts a float into another block's shared memory, at the place of this block's.
__device__ __forceinline__ void put_into_block(const float* at, int block, float x) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there) : "r"(unsigned(__cvta_generic_to_shared(at))), "r"(block));
  asm volatile("st.shared::cluster.f32 [%0], %1;" : : "r"(there), "f"(x) : "memory");
}

// Announces that this block runs. Its shared memory may be written by others from then on.
__device__ __forceinline__ void join_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory"); }

// Waits until all blocks of the cluster have announced themselves, or have put what others wait for.
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory"); }

__device__ __forceinline__ void end_of_puts() { asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory"); }

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

// Shared memory of a block: the lines of its warps, then what the blocks of its cluster put into it.
//   of_sums: a block's sums of the elements whose results this block stores.
//   of_rows: a block's greatest score and sum of weights of each query.
template <class With>
struct SumLines {
  static constexpr int kAll = With::kRows * With::kWide, kThreads = With::kThreads;
  static constexpr int kOwned = (kAll + kThreads * With::kBlocks - 1) / (kThreads * With::kBlocks) * kThreads;
  static constexpr int kOfWarps = With::kWarps * With::kRows * With::kLine;
  float* const shared;

  __device__ __forceinline__ const float* warp(int number, int row) const {
    return shared + (number * With::kRows + row) * With::kLine;
  }
  __device__ __forceinline__ float* of_sums(int block, int slot) const { return shared + kOfWarps + block * kOwned + slot; }
  __device__ __forceinline__ float* of_rows(int block, int row) const {
    return shared + kOfWarps + With::kBlocks * kOwned + (block * With::kRows + row) * 2;
  }
};

// Joins the sums of a block's warps, and those of the blocks of a cluster. Each thread stores some of the results.
// A block puts its sums where their results are stored, so that it reads no other block's memory.
template <class With>
__device__ __forceinline__ void join_keys(float* shared, typename With::Of::Result* out, Rows of_out, int first, int all,
                                          int queries, int keys, int rank) {
  using Of = typename With::Of;
  constexpr int kRows = With::kRows, kWide = With::kWide, kBlocks = With::kBlocks, kWarps = With::kWarps;
  constexpr int kThreads = With::kThreads;
  const SumLines<With> lines{shared};
  const auto store = [&](int row, int element, float sum, float total) {
    const int index = first + row;
    if (index >= all || element >= Of::kSize) return;
    const float inverse = total == 0.0f && (Of::kSafe || keys == 0) ? 0.0f : 1.0f / total;
    round_to(out[index / queries * of_out.head + index % queries * of_out.row + element], sum * inverse);
  };

  if (kBlocks > 1) wait_for_cluster();
  for (int at = int(threadIdx.x); at < kRows * kWide; at += kThreads) {
    const int row = at / kWide, element = at % kWide;
    float most = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) most = fmaxf(most, lines.warp(i, row)[kWide]);
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const float* const its = lines.warp(i, row);
      const float share = power_of_two(its[kWide] - finite_or_zero(most));
      sum += its[element] * share, total += its[kWide + 1] * share;
    }
    if (kBlocks == 1) {
      store(row, element, sum, total);
      continue;
    }
    const int piece = at / kThreads;
    put_into_block(lines.of_sums(rank, piece / kBlocks * kThreads + int(threadIdx.x)), piece % kBlocks, sum);
    for (int block = element; block < kBlocks; block += kWide) {
      put_into_block(lines.of_rows(rank, row), block, most);
      put_into_block(lines.of_rows(rank, row) + 1, block, total);
    }
  }
  if (kBlocks == 1) return;
  end_of_puts();
  wait_for_cluster();

  for (int at = rank * kThreads + int(threadIdx.x), slot = int(threadIdx.x); at < kRows * kWide;
       at += kBlocks * kThreads, slot += kThreads) {
    const int row = at / kWide, element = at % kWide;
    float most = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) most = fmaxf(most, lines.of_rows(block, row)[0]);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float share = power_of_two(lines.of_rows(block, row)[0] - finite_or_zero(most));
      sum = fmaf(*lines.of_sums(block, slot), share, sum);
      total = fmaf(lines.of_rows(block, row)[1], share, total);
    }
    store(row, element, sum, total);
  }
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
  if (With::kBlocks > 1) join_cluster();
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
