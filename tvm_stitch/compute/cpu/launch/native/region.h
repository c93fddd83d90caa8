// SPDX-License-Identifier: Apache-2.0
// A parallel region: its division into pieces, the pieces that nobody has taken, and its end.
#pragma once

#include <sys/types.h>
#include <tvm/ffi/c_api.h>
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "waiting.h"

namespace tvm_stitch::parallel {
namespace {

struct Group {  // TVMParallelGroupEnv
  void* barrier;
  int32_t tasks;
};

// FTVMParallelLambda: runs one of `tasks` equal slices of a loop.
using Task = int (*)(int32_t task, Group*, void* data);

constexpr int kMostThreads = 256, kMostRegions = 64;
constexpr int64_t kPieces = 8;                // least pieces of a thread's share
constexpr int64_t kMostTasks = 1 << 30;       // the task's code computes with sums of two such numbers in 32 bits
constexpr uint32_t kAll = 0x7fffffff;

// The pieces of a thread's share that nobody has taken: generation of the region << 32 | end << 16 | next.
struct alignas(64) Share {
  std::atomic<uint64_t> word{0};
};

struct Barrier {
  std::atomic<uint32_t> arrived{0};
  std::atomic<bool> broken{false};
  Event phase;
};

// How a loop is divided. A piece is a block of `block` iterations, or one iteration at an edge of a share, so that
// shares are equal but for one iteration. Task t of n does the iterations from t * ceil(extent / n) on, as many as
// that.
struct Division {
  int64_t extent, block, blocks;
  int shares;
  bool exact;  // shares begin at any iteration, not at a block only

  Division() = default;
  Division(int64_t count, int threads) : extent(count), shares(static_cast<int>(std::min<int64_t>(count, threads))) {
    if (extent > kMostTasks) extent = static_cast<int64_t>(shares) * 4 * kPieces;  // the unit is a slice of the loop
    int64_t share = extent / shares, steps = share / (2 * kPieces);
    exact = steps <= 16;
    block = std::max<int64_t>(1, exact ? steps : share / (4 * kPieces));
    for (int64_t each = share / kPieces; extent % shares == 0 && each > std::max<int64_t>(1, steps); --each) {
      if (share % each != 0) continue;
      block = each;
      break;
    }
    blocks = (extent + block - 1) / block;
    block = (extent + blocks - 1) / blocks;
  }

  struct Slice {
    int64_t first, end, first_block, end_block;
    uint32_t Pieces(int64_t block) const {
      if (first_block >= end_block) return static_cast<uint32_t>(end - first);
      int64_t tail = std::max<int64_t>(0, end - end_block * block);
      return static_cast<uint32_t>(first_block * block - first + end_block - first_block + tail);
    }
  };

  Slice SliceOf(int share) const {
    int64_t first = extent * share / shares, end = extent * (share + 1) / shares;
    if (!exact) {
      int64_t first_block = blocks * share / shares, end_block = blocks * (share + 1) / shares;
      return {first_block * block, end_block * block, first_block, end_block};
    }
    return {first, end, (first + block - 1) / block, end == extent ? blocks : end / block};
  }

  int Run(Task task, void* data, int share, int64_t piece) const {
    Slice slice = SliceOf(share);
    Group single{nullptr, static_cast<int32_t>(extent)}, whole{nullptr, static_cast<int32_t>(blocks)};
    if (slice.first_block >= slice.end_block) return task(static_cast<int32_t>(slice.first + piece), &single, data);
    int64_t head = slice.first_block * block - slice.first, middle = slice.end_block - slice.first_block;
    if (piece < head) return task(static_cast<int32_t>(slice.first + piece), &single, data);
    if (piece < head + middle) return task(static_cast<int32_t>(slice.first_block + piece - head), &whole, data);
    return task(static_cast<int32_t>(slice.end_block * block + piece - head - middle), &single, data);
  }
};

// A region lives as long as its pool, and serves many launches, one after the other. A thread that has taken a piece of
// a launch may read it, since the launch ends only after that piece. Others see by the generation that they are late.
struct Region {
  Task task;
  void* data;
  Division division;
  std::atomic<uint32_t> generation{0};
  std::atomic<int> shares{0};
  std::atomic<pid_t> caller{0};
  std::atomic<bool> inside{false};   // whether the caller runs pieces
  std::atomic<bool> fetched{false};  // whether a worker has moved it
  std::atomic<void*> error{nullptr};
  std::atomic<bool> failed{false};
  Event left;  // pieces that are not done
  Microseconds patience{0};  // the time that a piece should take at most
  // Of a group: generation << 32 | whether it is open << 16 | threads that joined it; the launch that has started.
  alignas(64) std::atomic<uint64_t> joined{0};
  Event started;
  Group group{};
  Barrier barrier;
  Share share[kMostThreads];

  bool Take(int index, bool from_end, int64_t* piece) {
    std::atomic<uint64_t>& word = share[index].word;
    uint64_t now = word.load(std::memory_order_acquire);
    while (true) {
      uint64_t next = now & 0xffff, end = now >> 16 & 0xffff;
      if (next >= end) return false;
      if (word.compare_exchange_weak(now, from_end ? now - 0x10000 : now + 1)) {
        *piece = static_cast<int64_t>(from_end ? end - 1 : next);
        return true;
      }
    }
  }

  void Note(int status) {
    if (status == 0) return;
    void* raised = nullptr;
    TVMFFIErrorMoveFromRaised(&raised);
    void* none = nullptr;
    failed.store(true);
    if (raised != nullptr && !error.compare_exchange_strong(none, raised)) TVMFFIObjectDecRef(raised);
  }

  void Done(uint32_t pieces) {
    if (pieces != 0 && left.value.fetch_sub(pieces) == pieces) left.Wake(1);
  }

  int Result() {
    if (!failed.exchange(false)) return 0;
    if (void* raised = error.exchange(nullptr)) {
      TVMFFIErrorSetRaised(raised);
      TVMFFIObjectDecRef(raised);
    } else {
      TVMFFIErrorSetRaisedFromCStr("RuntimeError", "tvm_stitch: a piece of a parallel region failed without an error");
    }
    return -1;
  }
};

}  // namespace
}  // namespace tvm_stitch::parallel
