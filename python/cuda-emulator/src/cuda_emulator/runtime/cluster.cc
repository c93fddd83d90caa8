// SPDX-License-Identifier: Apache-2.0
// Cluster barriers, in two halves: an arrival releases what the thread did before it, a wait acquires what others released.
//
// What a thread does between its arrival and its wait is not released by that barrier, although it is done before any
// thread of the cluster goes on. So an access carries the phase of its thread (Thread::phase), and is ordered before what
// follows the wait of a barrier once all who made it have released that phase. An arrival also releases what the thread
// knows of others: of its block up to the last block barrier, of its warp up to synchronisations of lanes. A relaxed
// arrival releases what the thread did, and knew, before its last fence of cluster scope or wider.
#include <algorithm>
#include <cstring>

#include "emulator.h"

namespace emu {

namespace {

constexpr uint32_t kPhase = 1u << 16;  // an arrival's part of a phase; the rest counts fences

void raise_to(Released& r, const Released& to) {
  r.phase = std::max(r.phase, to.phase);
  r.stamp = std::max(r.stamp, to.stamp);
}

const Block& block_of_access(const Block& mine, uint32_t who) {
  const Dim i = block_of(who), c = g_launch.cluster;
  const uint32_t rank = i.x % c.x + c.x * (i.y % c.y + c.y * (i.z % c.z));
  return *g_launch.residents[mine.resident - mine.rank + rank];
}

// Which of a `released` pair the thread may rely on: nobody is more than one barrier behind.
int seen_by(const Block& b, const Thread* t) { return t->acquired < b.completed; }

}  // namespace

uint32_t cluster_of(uint32_t who) {
  const Dim i = block_of(who), c = g_launch.cluster;
  return i.x / c.x + g_launch.grid.x / c.x * (i.y / c.y + g_launch.grid.y / c.y * (i.z / c.z));
}

void cluster_fence(Thread& t) {
  if ((t.phase + 1) % kPhase) ++t.phase;
  t.fenced_phase = t.phase;
  t.fenced_block = t.block->stamp;
  memcpy(t.fenced_known, t.known, sizeof t.known);
}

void cluster_arrive(Thread& t, bool release, int line) {
  if (t.arrivals > t.waits) {
    add_report(kDivergentBarrier, &t, line, nullptr, 0, nullptr, "second cluster arrive without a wait between");
    return;
  }
  if (release) {
    cluster_fence(t);
    t.fenced_phase = (t.arrivals + 1) * kPhase;
    t.block->told.insert(t.block->told.end(), t.awaited.begin(), t.awaited.end());
  }
  t.phase = ++t.arrivals * kPhase;
  Block& b = *t.block;
  raise_to(t.pending, {t.fenced_phase, 0});
  raise_to(b.pending, {0, t.fenced_block});
  const uint32_t first = (t.who & 1023) - t.lane;
  for (uint32_t lane = 0; lane < 32 && first + lane < b.threads.size(); ++lane)
    raise_to(b.threads[first + lane].pending, {0, t.fenced_known[lane]});
}

void cluster_wait(Thread& t, int line) {
  t.line = line;
  if (t.arrivals == t.waits) {
    add_report(kDivergentBarrier, &t, line, nullptr, 0, nullptr, "cluster wait without an arrive before it");
    cluster_arrive(t, false, line);
  }
  if (t.arrivals > t.block->completed) wait_here(kWaitCluster);
  t.waits = t.arrivals;
  t.acquired = std::max(t.acquired, t.waits);
  t.stamp = std::max(t.stamp, t.block->opened);  // later than the start of every block of the cluster
}

void complete_cluster_barrier(Block* const* blocks, uint32_t count) {
  const Stamp now = next_event();
  std::vector<uint32_t> told;
  for (uint32_t i = 0; i < count; ++i) {
    told.insert(told.end(), blocks[i]->told.begin(), blocks[i]->told.end());
    blocks[i]->told.clear();
  }
  for (uint32_t i = 0; i < count; ++i) {
    Block& b = *blocks[i];
    b.awaited.insert(b.awaited.end(), told.begin(), told.end());
    b.opened = now;
    b.released[1] = b.released[0];
    b.released[0].phase = ~0u;
    raise_to(b.released[0], {0, b.pending.stamp});
    for (Thread& t : b.threads) {
      t.released[1] = t.released[0];
      if (t.arrivals > b.completed) raise_to(t.released[0], t.pending);
      b.released[0].phase = std::min(b.released[0].phase, t.released[0].phase);
    }
    ++b.completed;
  }
}

bool thread_released(const Block& b, uint32_t thread, const Access& a, const Thread* to) {
  const int i = seen_by(b, to);
  return b.threads[thread].released[i].covers(a) || a.stamp < b.released[i].stamp;
}

bool cluster_ordered(const Access& a, uint8_t level, const Thread* t) {
  const Block& mine = *t->block;
  if (cluster_of(a.who) != mine.cluster) return false;
  const int i = seen_by(mine, t);
  if (level == kCluster) {
    Block* const* first = &g_launch.residents[mine.resident - mine.rank];
    return std::all_of(first, first + g_launch.cluster_size, [&](const Block* b) { return b->released[i].covers(a); });
  }
  const Block& owner = block_of_access(mine, a.who);
  if (level == kBlock) return owner.released[i].covers(a);
  const uint32_t thread = a.who & 1023;
  if (level == kThread) return thread_released(owner, thread, a, t);
  for (uint32_t lanes = a.lanes; lanes; lanes &= lanes - 1)
    if (!thread_released(owner, (thread & ~31u) + uint32_t(__builtin_ctz(lanes)), a, t)) return false;
  return true;
}

}  // namespace emu
