// SPDX-License-Identifier: Apache-2.0
// Products of a recurrent layer's state, step by step in one kernel, and the exchange of states within a cluster.
//
// Weights stay in registers, then in shared memory. Those that fit in neither are read in each step. A group of lanes
// divides the products of a unit, and exchanges halves of its sums until each lane has one total of all lanes. So n sums
// need about n exchanges, and not n times the logarithm of the lanes.
//
// States go to the other blocks by st.async. A barrier in each block's shared memory counts their bytes, so that a block
// waits for its own operands alone.
#ifndef TVM_STITCH_RECURRENT
#define TVM_STITCH_RECURRENT

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tvm_stitch {
namespace recurrent {

__device__ __forceinline__ float as_float(float x) { return x; }
__device__ __forceinline__ float as_float(half x) { return __half2float(x); }
__device__ __forceinline__ float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

__host__ __device__ constexpr int power_of_two(int least) {
  int found = 1;
  while (found < least) found *= 2;
  return found;
}

// Four neighbouring weights, or states in float32.
template <class Element>
struct alignas(4 * sizeof(Element)) Four {
  Element of[4];
};

// The division of a layer. All numbers are known when the kernel is compiled.
//   kHidden, kGates: hidden units of the layer, and gates of each.
//   kBlocks, kUnits: blocks of a cluster, and units of a block.
//   kWarps, kLanes: warps of a block, and lanes of a group, which computes a unit at a time.
//   kOwn: turns (units of a group) whose weights are in registers.
//   kKept: pieces of the other turns' weights that are in shared memory. A piece is four weights of a gate and lane.
//   kRows: most rows of the batch of a cluster.
//   kTogether, kAtOnce: rows that are multiplied at once by weights in registers, and by others. Powers of two above 1.
//   kBuffers: buffers of states.
template <class Element_, int kHidden_, int kGates_, int kBlocks_, int kUnits_, int kWarps_, int kLanes_, int kOwn_,
          int kKept_, int kRows_, int kTogether_, int kAtOnce_, int kBuffers_>
struct Layer {
  using Element = Element_;
  static constexpr int kHidden = kHidden_, kGates = kGates_, kBlocks = kBlocks_, kUnits = kUnits_, kLanes = kLanes_;
  static constexpr int kOwn = kOwn_, kKept = kKept_, kRows = kRows_, kBuffers = kBuffers_;
  static constexpr int kTogether = kTogether_, kAtOnce = kAtOnce_;
  static constexpr int kThreads = 32 * kWarps_, kGroups = kThreads / kLanes;
  static constexpr int kTurns = (kUnits + kGroups - 1) / kGroups;
  static constexpr int kPieces = (kHidden + 4 * kLanes - 1) / (4 * kLanes), kPadded = 4 * kLanes * kPieces;
  static constexpr int kOfWarp = 32 / kLanes * kTurns;  // units of a warp, which are neighbours
  static constexpr int kCellRows = 32 / kOfWarp;        // rows in which lanes have one cell each
  static constexpr bool kAligned = kHidden % 4 == 0;
  // Whether lanes find the sums of their cells without shared memory, if there is one row.
  static constexpr bool kDirect = kOwn == kTurns && power_of_two(kTurns * kGates) <= kLanes;
  // Rows of a buffer of states. Behind the last row, some are computed and dropped.
  static constexpr int kMost = kTurns > kOwn && kAtOnce > kTogether ? kAtOnce : kTogether;
  static constexpr int kPlaces = kRows < kMost ? power_of_two(kRows) : (kRows + kMost - 1) / kMost * kMost;
  // Shared memory in floats: barriers of the buffers, buffers of states, sums of gates, weights.
  static constexpr int kStates = 8, kState = kPlaces * kPadded, kSums = kStates + kBuffers * kState;
  static constexpr int kWeights = (kSums + kRows * kGates * kUnits + 3) / 4 * 4;
};

__device__ __forceinline__ unsigned address_of(const void* shared) { return unsigned(__cvta_generic_to_shared(shared)); }

// The address of the same place in another block of the cluster.
__device__ __forceinline__ unsigned in_block(unsigned own, int block) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(block));
  return there;
}

// The barrier of a buffer of states.
__device__ __forceinline__ unsigned barrier_of(const float* shared, int buffer) {
  return address_of(shared + 2 * buffer);
}

// Has a buffer's barrier expect the states of all units. One thread calls it.
template <class L>
__device__ __forceinline__ void expect(const float* shared, int buffer, int rows) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;"
               : : "r"(barrier_of(shared, buffer)), "r"(rows * L::kHidden * 4) : "memory");
}

// Weights of neighbouring states from k on, and 0 behind the last.
template <class L>
__device__ __forceinline__ Four<typename L::Element> weights_at(const typename L::Element* r, int first_unit, int unit,
                                                                int gate, int k) {
  using Element = typename L::Element;
  Four<Element> found;
  const bool there = unit < L::kUnits && first_unit + unit < L::kHidden;
  const Element* row = r + (long long)(gate * L::kHidden + (there ? first_unit + unit : 0)) * L::kHidden;
#pragma unroll
  for (int v = 0; v < 4; ++v) found.of[v] = Element(0.0f);
  if (L::kAligned) {
    if (there && k < L::kHidden) found = *reinterpret_cast<const Four<Element>*>(row + k);
  } else {
#pragma unroll
    for (int v = 0; v < 4; ++v)
      if (there && k + v < L::kHidden) found.of[v] = row[k + v];
  }
  return found;
}

// Where a thread's piece of weights is in shared memory.
template <class L>
__device__ __forceinline__ Four<typename L::Element>* kept_at(float* shared, int turn, int gate, int piece) {
  const int number = ((turn - L::kOwn) * L::kGates + gate) * L::kKept + piece;
  return reinterpret_cast<Four<typename L::Element>*>(shared + L::kWeights) + number * L::kThreads + int(threadIdx.x);
}

// Adds up values over lanes. Each exchange of lanes halves the values that a lane has, until there is one. Value i is
// then the total of value first + i. Lanes of which several have the same total have writes = false but for one.
template <int kLanes, int kValues>
__device__ __forceinline__ void add_up(float (&values)[kValues], int lane, int& first, bool& writes) {
  first = 0;
  writes = true;
  int left = kValues;
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
    const bool upper = (lane & apart) != 0;
    if (left > 1) {
      left /= 2;
      first += upper ? left : 0;
#pragma unroll
      for (int i = 0; i < kValues / 2; ++i)
        if (i < left) {
          const float sent = upper ? values[i] : values[i + left], stays = upper ? values[i + left] : values[i];
          values[i] = stays + __shfl_xor_sync(0xffffffffu, sent, apart);
        }
    } else {
      writes = writes && !upper;
      values[0] += __shfl_xor_sync(0xffffffffu, values[0], apart);
    }
  }
}

// The lane of a group that has the total of a value.
template <int kLanes, int kValues>
__device__ __forceinline__ int lane_of(int value) {
  int lane = 0, left = kValues / 2;
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2, left /= 2)
    if (left > 0 && (value & left)) lane += apart;
  return lane;
}

// Loads the weights that stay and the first states h, which are 0 if it is null, and makes the barriers. Others may send after the cluster has met.
template <class L>
__device__ __forceinline__ void enter(float* shared, float* own, const typename L::Element* r,
                                      const typename L::Element* h, int first_unit, int rows) {
  const int lane = int(threadIdx.x) % L::kLanes, group = int(threadIdx.x) / L::kLanes;
  if (L::kBlocks > 1 && threadIdx.x == 0) {
#pragma unroll
    for (int buffer = 0; buffer < L::kBuffers; ++buffer)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier_of(shared, buffer)), "r"(1) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
#pragma unroll
    for (int buffer = 0; buffer < L::kBuffers; ++buffer) expect<L>(shared, buffer, rows);
  }
#pragma unroll
  for (int turn = 0; turn < L::kOwn; ++turn)
#pragma unroll
    for (int gate = 0; gate < L::kGates; ++gate)
#pragma unroll
      for (int piece = 0; piece < L::kPieces; ++piece) {
        const auto found =
            weights_at<L>(r, first_unit, group * L::kTurns + turn, gate, (piece * L::kLanes + lane) * 4);
#pragma unroll
        for (int v = 0; v < 4; ++v)
          own[((turn * L::kGates + gate) * L::kPieces + piece) * 4 + v] = as_float(found.of[v]);
      }
#pragma unroll 1
  for (int turn = L::kOwn; turn < L::kTurns; ++turn)
#pragma unroll
    for (int gate = 0; gate < L::kGates; ++gate)
#pragma unroll
      for (int piece = 0; piece < L::kKept; ++piece)
        *kept_at<L>(shared, turn, gate, piece) =
            weights_at<L>(r, first_unit, group * L::kTurns + turn, gate, (piece * L::kLanes + lane) * 4);
  // States behind the last unit or row stay 0.
  for (int at = int(threadIdx.x); at < L::kBuffers * L::kState; at += L::kThreads) {
    const int row = at / L::kPadded, k = at % L::kPadded;
    const bool there = h && at < L::kState && row < rows && k < L::kHidden;
    shared[L::kStates + at] = there ? as_float(h[(long long)row * L::kHidden + k]) : 0.0f;
  }
}

template <class L>
__device__ __forceinline__ void enter(float* shared, float* own, const typename L::Element* r, int first_unit,
                                      int rows) {
  enter<L>(shared, own, r, nullptr, first_unit, rows);
}

// The weights of a turn's piece, in one of three places.
enum Place { kInRegisters, kInShared, kInMemory };

template <class L, Place kPlace>
__device__ __forceinline__ void load_weights(float (&w)[4], float* shared, const float* own,
                                             const typename L::Element* r, int first_unit, int turn, int gate,
                                             int piece) {
  const int lane = int(threadIdx.x) % L::kLanes, group = int(threadIdx.x) / L::kLanes;
  if (kPlace == kInRegisters) {
#pragma unroll
    for (int v = 0; v < 4; ++v) w[v] = own[((turn * L::kGates + gate) * L::kPieces + piece) * 4 + v];
  } else {
    const auto found =
        kPlace == kInShared
            ? *kept_at<L>(shared, turn, gate, piece)
            : weights_at<L>(r, first_unit, group * L::kTurns + turn, gate, (piece * L::kLanes + lane) * 4);
#pragma unroll
    for (int v = 0; v < 4; ++v) w[v] = as_float(found.of[v]);
  }
}

// Adds the products of a piece of the states of kRows rows and the weights of kTurns turns, from one turn on.
template <class L, Place kPlace, int kTurns, int kFirst, int kCount, int kRows, int kSlots>
__device__ __forceinline__ void add_piece(float (&totals)[kSlots], float* shared, const float* own,
                                          const typename L::Element* r, const float* states, int first_unit, int turn,
                                          int piece) {
  const int k = (piece * L::kLanes + int(threadIdx.x) % L::kLanes) * 4;
  Four<float> h[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) h[i] = *reinterpret_cast<const Four<float>*>(states + i * L::kPadded + k);
#pragma unroll
  for (int n = 0; n < kTurns * kCount; ++n) {
    float w[4];
    load_weights<L, kPlace>(w, shared, own, r, first_unit, turn + n / kCount, kFirst + n % kCount, piece);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int v = 0; v < 4; ++v) totals[n * kRows + i] = fmaf(h[i].of[v], w[v], totals[n * kRows + i]);
  }
}

// Adds up the totals of lanes, and stores them as the sums of units in shared memory.
template <class L, int kTurns, int kFirst, int kCount, int kRows, int kSlots>
__device__ __forceinline__ void store_sums(float (&totals)[kSlots], float* shared, int turn, int row) {
  const int lane = int(threadIdx.x) % L::kLanes, group = int(threadIdx.x) / L::kLanes;
  int first;
  bool writes;
  add_up<L::kLanes, kSlots>(totals, lane, first, writes);
  constexpr int kLeft = kSlots > L::kLanes ? kSlots / L::kLanes : 1;
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
    const int value = first + i, n = value / kRows, at = row + value % kRows;
    const int unit = group * L::kTurns + turn + n / kCount, gate = kFirst + n % kCount;
    if (writes && n < kTurns * kCount && unit < L::kUnits && at < L::kRows)
      shared[L::kSums + (at * L::kGates + gate) * L::kUnits + unit] = totals[i];
  }
}

// Rows at once, of which there are no more than the layer has.
template <class L>
__host__ __device__ constexpr int at_most(int rows) {
  return rows < L::kPlaces ? rows : L::kPlaces;
}

// The products of kRows rows of states and the weights in registers. If kDirect, totals of one row go to the lanes of
// their cells (found) without shared memory.
template <class L, int kFirst, int kCount, int kRows, bool kDirect>
__device__ __forceinline__ void own_turns(float* shared, const float* own, float* found, const typename L::Element* r,
                                          const float* states, int first_unit, int row) {
  if (L::kOwn == 0) return;
  constexpr int kTurns = L::kOwn > 0 ? L::kOwn : 1, kSlots = power_of_two(kTurns * kCount * kRows);
  float totals[kSlots] = {};
#pragma unroll
  for (int piece = 0; piece < L::kPieces; ++piece)
    add_piece<L, kInRegisters, kTurns, kFirst, kCount, kRows>(totals, shared, own, r, states + row * L::kPadded,
                                                              first_unit, 0, piece);
  if (kDirect) {
    int first;
    bool writes;
    add_up<L::kLanes, kSlots>(totals, int(threadIdx.x) % L::kLanes, first, writes);
    const int unit = int(threadIdx.x) % 32 % L::kOfWarp;
#pragma unroll
    for (int gate = 0; gate < kCount; ++gate) {
      const int lane = unit / kTurns * L::kLanes + lane_of<L::kLanes, kSlots>(unit % kTurns * kCount + gate);
      found[gate] = __shfl_sync(0xffffffffu, totals[0], lane);
    }
    return;
  }
  store_sums<L, kTurns, kFirst, kCount, kRows>(totals, shared, 0, row);
}

// The products of up to kMost rows of states and the other weights of a turn. Rows behind the last are computed, and
// dropped: to read the weights once more would cost more.
template <class L, int kFirst, int kCount, int kMost>
__device__ __forceinline__ void other_turn(float* shared, const float* own, const typename L::Element* r,
                                           const float* states, int first_unit, int turn, int row) {
  constexpr int kRows = at_most<L>(kMost);
  float totals[power_of_two(kCount * kRows)] = {};
  states += row * L::kPadded;
#pragma unroll 2
  for (int piece = 0; piece < L::kKept; ++piece)
    add_piece<L, kInShared, 1, kFirst, kCount, kRows>(totals, shared, own, r, states, first_unit, turn, piece);
#pragma unroll 2
  for (int piece = L::kKept; piece < L::kPieces; ++piece)
    add_piece<L, kInMemory, 1, kFirst, kCount, kRows>(totals, shared, own, r, states, first_unit, turn, piece);
  store_sums<L, 1, kFirst, kCount, kRows>(totals, shared, turn, row);
}

// The products of all rows and the other weights of all turns.
template <class L, int kFirst, int kCount>
__device__ __forceinline__ void other_turns(float* shared, const float* own, const typename L::Element* r,
                                            const float* states, int first_unit, int rows) {
#pragma unroll 1
  for (int turn = L::kOwn; turn < L::kTurns; ++turn)
#pragma unroll 1
    for (int row = 0; row < rows; row += L::kAtOnce)
      if (rows - row > 2)
        other_turn<L, kFirst, kCount, L::kAtOnce>(shared, own, r, states, first_unit, turn, row);
      else if (rows - row > 1)
        other_turn<L, kFirst, kCount, 2>(shared, own, r, states, first_unit, turn, row);
      else
        other_turn<L, kFirst, kCount, 1>(shared, own, r, states, first_unit, turn, row);
}

// Whether a warp has units. Others neither read states nor wait for them. They send none, so that nobody would wait for
// them before states are overwritten, or a barrier's phase is over.
template <class L>
__device__ __forceinline__ bool has_units(int first_unit) {
  return int(threadIdx.x) / 32 * L::kOfWarp < min(L::kUnits, L::kHidden - first_unit);
}

// The products of all rows of a buffer of states and the weights of kCount gates from kFirst on. Lane i finds those of the
// warp's unit i % kOfWarp in row i / kOfWarp, and in kCellRows more for each further cell.
template <class L, int kFirst, int kCount>
__device__ __forceinline__ void products(float* shared, float* own, float* found, const typename L::Element* r,
                                         int buffer, int first_unit, int rows) {
  const float* states = shared + L::kStates + buffer * L::kState;
  if (!has_units<L>(first_unit)) return;
  if (L::kDirect && rows == 1) {
    own_turns<L, kFirst, kCount, 1, L::kDirect>(shared, own, found, r, states, first_unit, 0);
    __syncwarp();  // all lanes have read the states before one sends
    return;
  }
  __syncwarp();  // lanes have read the sums of the step before
#pragma unroll 1
  for (int row = 0; row < rows; row += L::kTogether)
    if (rows - row > 2)
      own_turns<L, kFirst, kCount, at_most<L>(L::kTogether), false>(shared, own, found, r, states, first_unit, row);
    else if (rows - row > 1)
      own_turns<L, kFirst, kCount, at_most<L>(2), false>(shared, own, found, r, states, first_unit, row);
    else
      own_turns<L, kFirst, kCount, 1, false>(shared, own, found, r, states, first_unit, row);
  other_turns<L, kFirst, kCount>(shared, own, r, states, first_unit, rows);
  __syncwarp();
  const int lane = int(threadIdx.x) % 32, unit = int(threadIdx.x) / 32 * L::kOfWarp + lane % L::kOfWarp;
#pragma unroll
  for (int cell = 0; cell * L::kCellRows < L::kRows; ++cell) {
    const int row = lane / L::kOfWarp + cell * L::kCellRows;
    if (row < rows && unit < L::kUnits)
#pragma unroll
      for (int gate = 0; gate < kCount; ++gate)
        found[cell * kCount + gate] = shared[L::kSums + (row * L::kGates + kFirst + gate) * L::kUnits + unit];
  }
}

// Sends the states of a warp to a buffer of all blocks. Lane i has that of the warp's unit i % kOfWarp in row i / kOfWarp,
// behind the rows of the cells before.
template <class L>
__device__ __forceinline__ void send(float* shared, float value, int number, int buffer, int first_unit, int rows) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, first_row = number * L::kCellRows;
  const int count = min(rows - first_row, L::kCellRows) * L::kOfWarp;
  float* const states = shared + L::kStates + buffer * L::kState;
  if (L::kBlocks == 1) {
    const int unit = warp * L::kOfWarp + lane % L::kOfWarp, row = first_row + lane / L::kOfWarp;
    if (lane < count && unit < L::kUnits) states[row * L::kPadded + unit] = value;
    return;
  }
  constexpr int kAtOnce = 32 / L::kBlocks;
  const unsigned to = in_block(address_of(states), lane % L::kBlocks);
  const unsigned barrier = in_block(barrier_of(shared, buffer), lane % L::kBlocks);
  for (int begin = 0; begin < count; begin += kAtOnce) {
    const int from = begin + lane / L::kBlocks, row = first_row + from / L::kOfWarp;
    const int unit = warp * L::kOfWarp + from % L::kOfWarp;
    const float sent = __shfl_sync(0xffffffffu, value, from % 32);
    if (from < count && unit < L::kUnits && first_unit + unit < L::kHidden) {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                   : : "r"(to + (row * L::kPadded + first_unit + unit) * 4), "r"(__float_as_uint(sent)), "r"(barrier)
                   : "memory");
    }
  }
}

// Waits for the states of all blocks in a buffer, and has its barrier expect the next ones.
template <class L>
__device__ __forceinline__ void wait(const float* shared, int buffer, int parity, int first_unit, int rows) {
  if (L::kBlocks == 1) {
    __syncthreads();
    return;
  }
  if (!has_units<L>(first_unit)) return;
  const unsigned barrier = barrier_of(shared, buffer);
  unsigned done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.b32 %0, 1, 0, p; }" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  if (threadIdx.x == 0) expect<L>(shared, buffer, rows);
}

}  // namespace recurrent
}  // namespace tvm_stitch

#endif  // TVM_STITCH_RECURRENT
