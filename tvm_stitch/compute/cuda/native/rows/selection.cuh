// SPDX-License-Identifier: Apache-2.0
// The first elements of a sorted row: the largest ones, or the smallest.
//
// An element and its index are one integer of 64 bits in the order of a sort, so that no two are equal
// (compute/selection/ordered.py). A block reads a chunk of its row into registers. Each of 64 groups of threads has a
// greatest integer, and the kCount-th largest of these is a lower bound of the chunk's kCount-th largest. The integers
// above the bound, mostly a few more than kCount, meet in shared memory. Each then counts those that are greater: this
// is its place. The best integers so far are kept, and the next chunk has a bound from the start.
//
// The blocks of a cluster have a slice of the row each. The first one reads what the others kept.
#ifndef TVM_STITCH_SELECTION
#define TVM_STITCH_SELECTION

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tvm_stitch {
namespace selection {

using Key = long long;
constexpr int kThreads = 512;
constexpr int kOwn = 16;       // elements of a chunk that a thread has
constexpr int kGroup = 8;      // neighbouring threads of a group
constexpr int kRoom = 512;     // most integers of a chunk that meet
constexpr int kIndexBits = 31;
constexpr int kLastIndex = 0x7fffffff;
constexpr Key kNothing = -0x7fffffffffffffffll - 1;
constexpr Key kAbove = Key(1) << 62;  // above the integer of any element
static_assert(kThreads / kGroup == 64, "as many groups as a row has results, at most");

__device__ __forceinline__ int order(float x) {
  if (isnan(x)) return kLastIndex;
  const int bits = __float_as_int(x == 0.0f ? 0.0f : x);
  return bits < 0 ? bits ^ kLastIndex : bits;
}
__device__ __forceinline__ int order(half x) { return order(__half2float(x)); }
__device__ __forceinline__ int order(__nv_bfloat16 x) { return order(__bfloat162float(x)); }
__device__ __forceinline__ int order(unsigned x) { return int(x ^ 0x80000000u); }
__device__ __forceinline__ int order(int x) { return x; }
__device__ __forceinline__ int order(signed char x) { return x; }
__device__ __forceinline__ int order(unsigned char x) { return x; }
__device__ __forceinline__ int order(short x) { return x; }
__device__ __forceinline__ int order(unsigned short x) { return x; }

template <int kCount>
struct Shared {
  Key kept[kCount];           // the best so far, in order
  Key met[kRoom + kCount];
  Key groups[kThreads / kGroup];
  Key bound;
  int number;                 // of integers that met, some of which had no room
};

// kBlocks: blocks of a cluster, which have slices of a row.
template <class Element, int kCount, bool kLargest, int kBlocks>
struct Row {
  static_assert(kBlocks * kCount <= kRoom, "what all blocks kept meets in the first one");
  Shared<kCount>& shared;
  const Element* row;
  int begin, end;
  Key own[kOwn];

  __device__ __forceinline__ void load(int first) {
    Element found[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = first + i * kThreads + int(threadIdx.x);
      if (at < end) found[i] = row[at];
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = first + i * kThreads + int(threadIdx.x);
      own[i] = kNothing;
      if (at < end) {
        const int ordered = order(found[i]);
        own[i] = Key(kLargest ? ordered : ~ordered) * (Key(1) << kIndexBits) + (kLastIndex - at);
      }
    }
  }

  // The number of the chunk's integers that are at least a bound, for all threads.
  __device__ __forceinline__ int count(Key bound) const {
    int all = 0;
    for (int i = 0; i < kOwn; ++i) all += __syncthreads_count(own[i] >= bound);
    return all;
  }

  // Stores integers that are at least a bound, as many as there is room for, and returns their number.
  __device__ __forceinline__ int meet(Key bound) {
    if (threadIdx.x == 0) shared.number = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (own[i] >= bound) {
        const int at = atomicAdd(&shared.number, 1);
        if (at < kRoom) shared.met[at] = own[i];
      }
    }
    __syncthreads();
    return shared.number;
  }

  // Keeps the best of the integers that met and, if kOthers is set, of those kept before.
  template <bool kOthers>
  __device__ __forceinline__ void keep(int number) {
    if (kOthers) {
      if (int(threadIdx.x) < kCount) shared.met[number + threadIdx.x] = shared.kept[threadIdx.x];
      number += kCount;
      __syncthreads();
    }
    for (int i = threadIdx.x; i < number; i += kThreads) {
      const Key key = shared.met[i];
      int place = 0;
      for (int other = 0; other < number; ++other) place += shared.met[other] > key;
      if (place < kCount && key != kNothing) shared.kept[place] = key;
    }
    __syncthreads();
  }

  // Joins a chunk that is loaded to the best so far.
  __device__ __forceinline__ void join() {
    Key best = own[0];
#pragma unroll
    for (int i = 1; i < kOwn; ++i) best = max(best, own[i]);
    const Key least = shared.kept[kCount - 1];
    if (!__syncthreads_or(best > least)) return;
    for (int other = 1; other < kGroup; other *= 2) best = max(best, __shfl_xor_sync(0xffffffffu, best, other));
    if (threadIdx.x % kGroup == 0) shared.groups[threadIdx.x / kGroup] = best;
    __syncthreads();
    if (threadIdx.x < kThreads / kGroup) {
      const Key group = shared.groups[threadIdx.x];
      int place = 0;
      for (int other = 0; other < kThreads / kGroup; ++other) {
        const Key another = shared.groups[other];
        place += another > group || (another == group && other < int(threadIdx.x));
      }
      if (place == kCount - 1) shared.bound = max(group, least + 1);
    }
    __syncthreads();
    Key low = shared.bound;
    int number = meet(low);
    if (number > kRoom) {  // the greatest elements are in few groups
      Key high = kAbove;
      low = max(low, -kAbove);
      while (number > kRoom) {
        const Key middle = low + (high - low) / 2;
        const int above = count(middle);
        if (above >= kCount) {
          low = middle;
          number = above;
        } else {
          high = middle;
        }
      }
      number = meet(low);
    }
    keep<true>(number);
  }

  // Moves to the first block what all blocks of the cluster kept.
  __device__ __forceinline__ void gather() {
    const int rank = int(blockIdx.x) % kBlocks;
    meet_cluster();
    if (rank == 0) {
      for (int i = threadIdx.x; i < kBlocks * kCount; i += kThreads)
        shared.met[i] = of_block(&shared.kept[i % kCount], i / kCount);
    }
    meet_cluster();
    if (rank == 0) keep<false>(kBlocks * kCount);
  }

  __device__ __forceinline__ static void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
  }

  // An integer of another block's shared memory, at the place of this block's.
  __device__ __forceinline__ static Key of_block(const Key* at, int block) {
    unsigned there;
    Key found;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there) : "r"(unsigned(__cvta_generic_to_shared(at))), "r"(block));
    asm volatile("ld.shared::cluster.s64 %0, [%1];" : "=l"(found) : "r"(there));
    return found;
  }
};

// Selects kCount elements of a row. store gets the place of each in the result, and its index in the row.
template <class Element, int kCount, bool kLargest, int kBlocks, class Store>
__device__ __forceinline__ void select(const Element* row, int length, Store store) {
  __shared__ Shared<kCount> shared;
  const int rank = int(blockIdx.x) % kBlocks, slice = (length + kBlocks - 1) / kBlocks;
  const int begin = min(length, rank * slice), end = min(length, begin + slice);
  Row<Element, kCount, kLargest, kBlocks> of{shared, row, begin, end};
  if (int(threadIdx.x) < kCount) shared.kept[threadIdx.x] = kNothing;
  __syncthreads();
  for (int first = begin; first < end; first += kThreads * kOwn) {
    of.load(first);
    of.join();
  }
  if (kBlocks > 1) of.gather();
  if (rank == 0 && int(threadIdx.x) < kCount) {
    const int index = kLastIndex - int(shared.kept[threadIdx.x] & kLastIndex);
    store(int(threadIdx.x), min(index, length - 1));
  }
}

}  // namespace selection
}  // namespace tvm_stitch

#endif  // TVM_STITCH_SELECTION
