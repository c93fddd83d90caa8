// SPDX-License-Identifier: Apache-2.0
// Runs a launch: one fiber per CUDA thread, all on one OS thread, switched only where a thread waits.
//
// A thread runs until it waits (barrier, warp operation) or ends. When every lane of a warp has stopped, warp operations
// whose lanes are all there complete; when every thread of a block has stopped, its barrier opens; then cluster and grid
// barriers. If nothing can go on, that is a deadlock, with the reason known.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "emulator.h"

namespace emu {

Thread* g_thread = nullptr;
LaunchState g_launch;
Stamp g_event = 16;

Stamp next_event() { return ++g_event; }

namespace {

// ---- barriers --------------------------------------------------------------------------------------------------------
// Lets the threads of a block go on that wait at a block or grid barrier; each knows then all that any of them knew.
void release_block(Block& b, State from, Stamp now) {
  b.stamp = now;
  uint32_t acquired = 0;
  for (Thread& t : b.threads) {
    if (t.state != from) continue;
    acquired = std::max(acquired, t.acquired);
    b.awaited.insert(b.awaited.end(), t.awaited.begin(), t.awaited.end());
    t.awaited.clear();
  }
  for (Thread& t : b.threads) {
    if (t.state != from) continue;
    t.stamp = now;
    t.acquired = acquired;
    for (Stamp& k : t.known) k = now;
    t.state = kReady;
  }
}

// Every thread of the block has stopped: opens the block barrier if all live threads wait at one.
bool resolve_block(Block& b) {
  const Thread* first = nullptr;
  const Thread* different = nullptr;
  uint32_t waiting = 0;
  int predicate_and = 1, predicate_or = 0, predicate_count = 0;
  for (const Thread& t : b.threads) {
    if (t.state != kWaitBlock) continue;
    ++waiting;
    if (!first) first = &t;
    if (t.line != first->line && !different) different = &t;
    predicate_and &= t.arg;
    predicate_or |= t.arg;
    predicate_count += t.arg;
  }
  if (!waiting || waiting != b.live) return false;
  if (waiting != b.threads.size())
    add_report(kDivergentBarrier, first, first->line, nullptr, 0, nullptr,
               "%zu of %zu threads ended before the barrier at line %d that the others wait at", b.threads.size() - waiting,
               b.threads.size(), first->line);
  if (different)
    add_report(kDivergentBarrier, first, first->line, nullptr, 0, &different->who,
               "threads of one block wait at different barriers, lines %d and %d", first->line, different->line);
  for (Thread& t : b.threads)
    if (t.state == kWaitBlock)
      t.result = t.mode == 1 ? predicate_and : t.mode == 2 ? predicate_or : t.mode == 3 ? predicate_count : 0;
  release_block(b, kWaitBlock, next_event());
  return true;
}

bool all_wait(const Block& b, State state) {
  uint32_t n = 0;
  for (const Thread& t : b.threads) n += t.state == state;
  return n == b.live;
}

const Thread* first_waiting(const Block& b, State state) {
  for (const Thread& t : b.threads)
    if (t.state == state) return &t;
  return nullptr;
}

void report_missing(const Block& b, const char* what) {
  const Thread* t = first_waiting(b, kWaitGrid);
  if (!t) t = first_waiting(b, kWaitCluster);
  if (t && b.live != b.threads.size())
    add_report(kDivergentBarrier, t, t->line, nullptr, 0, nullptr, "%zu of %zu threads of a block ended before its %s barrier",
               b.threads.size() - b.live, b.threads.size(), what);
}

bool resolve_clusters() {
  bool progress = false;
  std::vector<Block*>& blocks = g_launch.residents;
  for (size_t first = 0; first < blocks.size(); first += g_launch.cluster_size) {
    const size_t end = std::min(blocks.size(), first + g_launch.cluster_size);
    uint32_t arrived = 0, live = 0;
    for (size_t i = first; i < end; ++i) {
      for (const Thread& t : blocks[i]->threads) arrived += t.state != kExited && t.arrivals > blocks[i]->completed;
      live += blocks[i]->live;
    }
    if (!arrived || arrived != live) continue;
    for (size_t i = first; i < end; ++i) report_missing(*blocks[i], "cluster");
    complete_cluster_barrier(&blocks[first], uint32_t(end - first));
    // Who has arrived and waits for something else goes on from there, and finds the barrier open when it comes to wait.
    for (size_t i = first; i < end; ++i)
      for (Thread& t : blocks[i]->threads)
        if (t.state == kWaitCluster) {
          t.state = kReady;
          progress = true;
        }
  }
  return progress;
}

bool resolve_all_mbarriers() {
  bool progress = false;
  for (Block* b : g_launch.residents) progress |= !b->mbarriers.empty() && resolve_mbarriers(*b);
  return progress;
}

bool resolve_grid() {
  uint32_t waiting = 0;
  for (Block* b : g_launch.residents) {
    if (!all_wait(*b, kWaitGrid)) return false;
    waiting += b->live;
  }
  if (!waiting) return false;
  const Stamp now = next_event();
  g_launch.grid_stamp = now;
  for (Block* b : g_launch.residents) {
    report_missing(*b, "grid");
    if (!b->live)
      add_report(kDivergentBarrier, &b->threads[0], 0, nullptr, 0, nullptr, "a block ended before a grid barrier");
    release_block(*b, kWaitGrid, now);
  }
  return true;
}

void report_deadlock() {
  for (Block* b : g_launch.residents) {
    if (!b->live) continue;
    int at[5] = {};
    const Thread* first = nullptr;
    for (const Thread& t : b->threads) {
      if (t.state == kExited) continue;
      if (!first) first = &t;
      ++at[t.state == kWaitBlock ? 0 : t.state == kWaitCluster ? 1 : t.state == kWaitGrid ? 2 : t.state == kWaitMbarrier ? 3 : 4];
    }
    if ((at[0] != 0) + (at[1] != 0) + (at[2] != 0) > 1)
      add_report(kDivergentBarrier, first, first->line, nullptr, 0, nullptr,
                 "threads of one block wait at barriers of different kinds (block %d, cluster %d, grid %d)", at[0], at[1],
                 at[2]);
    add_report(kDeadlock, first, first->line, nullptr, 0, nullptr,
               "no thread can go on: of this block %d wait at a block, %d at a cluster, %d at a grid barrier, %d for bytes", at[0],
               at[1], at[2], at[3]);
    return;
  }
}

// ---- the order of threads: the natural one, or shuffled by a seed ------------------------------------------------------
uint64_t g_random = 0;
uint32_t random_below(uint32_t n) {
  g_random = g_random * 6364136223846793005ull + 1442695040888963407ull;
  return uint32_t((g_random >> 33) % n);
}
void mix(std::vector<uint32_t>& order) {
  if (!g_random) return;
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_below(uint32_t(i))]);
}

// Runs the threads of a block until each has ended or waits for other blocks.
void run_block(Block& b, std::vector<uint32_t>& order) {
  const uint32_t warps = (uint32_t(b.threads.size()) + 31) / 32;
  order.resize(warps);
  std::iota(order.begin(), order.end(), 0);
  do {
    mix(order);
    for (uint32_t warp : order) {
      const uint32_t first = warp * 32, end = std::min<uint32_t>(first + 32, uint32_t(b.threads.size()));
      const uint32_t turn = g_random ? random_below(32) : 0;
      do {
        for (uint32_t i = 0; i < 32; ++i) {
          const uint32_t at = first + (i + turn) % 32;
          if (at >= end || b.threads[at].state > kReady) continue;
          resume(b.threads[at]);
          if (g_launch.aborted) return;
        }
      } while (resolve_warp(b, first));
    }
  } while (resolve_block(b));
}

void start_block(Block& b, uint32_t linear, uint32_t resident) {
  b.linear = linear;
  b.index = block_of(linear << 10);
  b.resident = resident;
  const Dim c = g_launch.cluster;
  b.cluster = b.index.x / c.x + g_launch.grid.x / c.x * (b.index.y / c.y + g_launch.grid.y / c.y * (b.index.z / c.z));
  b.rank = b.index.x % c.x + c.x * (b.index.y % c.y + c.y * (b.index.z % c.z));
  b.stamp = b.start = next_event();
  b.live = g_launch.threads;
  b.completed = b.opened = 0;
  b.released[0] = b.released[1] = b.pending = Released{};
  b.visits = Access{};
  b.mbarriers.clear();
  b.awaited.clear();
  b.readers.clear();
  b.told.clear();
  b.visits_level = kThread;
  memset(b.shared_ready, 0, sizeof b.shared_ready);
  if (g_launch.cluster_size > 1)  // the arrays of the block that was here before are no longer anybody's
    for (uint64_t i = 0; i < kSharedPerBlock; ++i) {
      Slot& s = g_shared_slots[resident * kSharedPerBlock + i];
      s.hi = s.lo;
    }
  if (b.threads.size() != g_launch.threads) b.threads = std::vector<Thread>(g_launch.threads);
  for (uint32_t i = 0; i < g_launch.threads; ++i) {
    Thread& t = b.threads[i];
    t = Thread{};
    t.block = &b;
    t.who = (linear << 10) + i;
    t.lane = i & 31;
    t.index = thread_of(i);
    t.stamp = b.stamp;
    for (Stamp& k : t.known) k = b.stamp;
  }
}

// Runs resident blocks, which may wait for each other, to their end.
void run_group() {
  std::vector<uint32_t> order(g_launch.residents.size()), warps;
  std::iota(order.begin(), order.end(), 0);
  do {
    mix(order);
    for (uint32_t i : order) {
      run_block(*g_launch.residents[i], warps);
      if (g_launch.aborted) return;
    }
  } while (resolve_all_mbarriers() || resolve_clusters() || resolve_grid());
  for (Block* b : g_launch.residents)
    if (b->live) {
      report_deadlock();
      g_launch.aborted = true;
      return;
    }
}

}  // namespace

}  // namespace emu

using namespace emu;

extern "C" {

struct LaunchRequest {  // mirrored by launch.py
  void* entry;
  void** args;
  uint32_t grid[3], block[3], cluster[3];
  uint32_t cooperative;
  uint64_t dynamic_shared;
  uint64_t seed;
  int64_t budget;
  double seconds;
  uint32_t flags;  // 1 strict_rewrite, 2 volatile accesses run in lock step, 4 strict_shuffle, 8 poison shared memory, 16 dependent
  uint32_t n_arrays;
  const uint64_t* addresses;
  const uint64_t* sizes;
  const uint32_t* itemsizes;
  const uint32_t* outputs;
  const char* const* names;
};

// Runs one launch to its end. 0: all threads ended; 1: it was given up (see the reports).
int emu_launch(const LaunchRequest* q) {
  if (!memory_init()) return 1;
  clear_reports();
  LaunchState& l = g_launch;
  l.grid = Dim{q->grid[0], q->grid[1], q->grid[2]};
  l.block = Dim{q->block[0], q->block[1], q->block[2]};
  l.cluster = Dim{q->cluster[0], q->cluster[1], q->cluster[2]};
  l.cluster_size = l.cluster.x * l.cluster.y * l.cluster.z;
  l.threads = l.block.x * l.block.y * l.block.z;
  l.cooperative = q->cooperative;
  l.aborted = false;
  l.dynamic_shared = q->dynamic_shared;
  l.budget = q->budget;
  l.strict_rewrite = q->flags & 1;
  l.volatile_sync = q->flags & 2;
  l.strict_shuffle = q->flags & 4;
  l.poison = q->flags & 8;
  l.dependent = q->flags & 16;
  const uint64_t blocks = uint64_t(l.grid.x) * l.grid.y * l.grid.z;
  Thread nobody;
  const char* wrong = nullptr;
  if (!l.threads || l.threads > 1024) wrong = "a block has 1 to 1024 threads";
  else if (!blocks) wrong = "the grid is empty";
  else if (blocks >= 1u << 21) wrong = "the emulator takes grids of up to 2097151 blocks";
  else if (l.grid.y > 65535 || l.grid.z > 65535) wrong = "grid y and z are at most 65535";
  else if (l.block.z > 64) wrong = "block z is at most 64";
  else if (!l.cluster_size || l.grid.x % l.cluster.x || l.grid.y % l.cluster.y || l.grid.z % l.cluster.z)
    wrong = "the grid is not a multiple of the cluster";
  else if (l.cluster_size > 16) wrong = "a cluster has at most 16 blocks";
  else if (l.dynamic_shared > 227 << 10) wrong = "dynamic shared memory above 227 KiB";
  else if (l.cooperative && blocks > kMaxResident) wrong = "more blocks than can be resident in a cooperative launch";
  if (wrong) {
    add_report(kLaunch, nullptr, 0, nullptr, 0, nullptr, "%s", wrong);
    return 1;
  }
  g_random = q->seed ? q->seed * 0x9e3779b97f4a7c15ull | 1 : 0;
  l.start = l.grid_stamp = next_event();

  std::vector<Slot*> slots;
  for (uint32_t i = 0; i < q->n_arrays; ++i) {
    Slot& s = g_global_slots[(q->addresses[i] - g_global_base) >> kGlobalShift];
    const uint64_t lo = q->addresses[i], hi = lo + q->sizes[i];
    if (std::find(slots.begin(), slots.end(), &s) == slots.end()) {
      slots.push_back(&s);
      s.lo = lo;
      s.hi = hi;
      s.itemsize = q->itemsizes[i];
      s.output = q->outputs[i];
      s.name_storage = q->names[i];
      s.ranges = {{lo, hi}};
      continue;
    }
    s.lo = std::min(s.lo, lo);
    s.hi = std::max(s.hi, hi);
    s.output = s.output || q->outputs[i];
    s.name_storage += std::string("/") + q->names[i];
    s.ranges.push_back({lo, hi});
  }
  for (Slot* s : slots) {
    s->name = s->name_storage.c_str();
    if (s->ranges.size() == 1) s->ranges.clear();
  }

  // Blocks that may wait for each other are resident together: all of a cooperative launch, else one cluster.
  static std::vector<std::unique_ptr<Block>> pool;
  const uint64_t together = l.cooperative ? blocks : l.cluster_size;
  while (pool.size() < together) pool.push_back(std::make_unique<Block>());
  // Blocks in the order of their clusters, so that a group is a cluster.
  std::vector<uint32_t> order(blocks);
  for (uint32_t i = 0; i < blocks; ++i) {
    const Dim b = block_of(i << 10), c = l.cluster;
    const uint32_t cluster = b.x / c.x + l.grid.x / c.x * (b.y / c.y + l.grid.y / c.y * (b.z / c.z));
    const uint32_t rank = b.x % c.x + c.x * (b.y % c.y + c.y * (b.z % c.z));
    order[cluster * l.cluster_size + rank] = i;
  }
  std::vector<uint32_t> groups(blocks / together);
  std::iota(groups.begin(), groups.end(), 0);
  mix(groups);
  l.active = true;
  begin_run(q->entry, q->args, q->seconds);
  for (uint32_t group : groups) {
    l.residents.clear();
    for (uint64_t i = 0; i < together; ++i) {
      start_block(*pool[i], order[group * together + i], uint32_t(i));
      l.residents.push_back(pool[i].get());
    }
    run_group();
    for (Block* b : l.residents) drop_stacks(*b);
    if (l.aborted) break;
  }
  end_run();
  l.active = false;
  g_thread = nullptr;
  if (l.cooperative) pool.clear();
  for (Slot* s : slots) {
    s->lo = s->hi = 0;
    s->ranges.clear();
    s->output = false;
  }
  return l.aborted;
}

}  // extern "C"
