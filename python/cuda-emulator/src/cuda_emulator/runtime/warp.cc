// SPDX-License-Identifier: Apache-2.0
// Operations of a warp: shuffles, votes, reductions, __syncwarp, __activemask. Of these __syncwarp alone orders memory.
#include <algorithm>
#include <cstring>

#include "emulator.h"

namespace emu {

namespace {

const char* op_name(WarpOp op) {
  switch (op) {
    case kShuffleOp: return "shuffle";
    case kSyncWarpOp: return "__syncwarp";
    case kCollectiveOp: return "warp vote or reduction";
    case kActiveMaskOp: return "__activemask";
    default: return "volatile access";
  }
}

struct Warp {
  Thread* lanes[32] = {};
  uint32_t waiting = 0;  // lanes that wait at a warp operation
  uint32_t live = 0;
};

Warp look_at(Block& b, uint32_t first) {
  Warp w;
  const uint32_t end = std::min<uint32_t>(first + 32, uint32_t(b.threads.size()));
  for (uint32_t i = first; i < end; ++i) {
    Thread& t = b.threads[i];
    w.lanes[i - first] = &t;
    if (t.state != kExited) w.live |= 1u << (i - first);
    if (t.state == kWaitWarp) w.waiting |= 1u << (i - first);
  }
  return w;
}

bool same_operation(const Thread& a, const Thread& b) {
  if (a.op != b.op) return false;
  switch (a.op) {
    case kSyncWarpOp: return a.mask == b.mask;
    case kActiveMaskOp: return a.line == b.line;
    case kVolatileOp: return a.site == b.site;
    default: return a.mask == b.mask && a.line == b.line && a.mode == b.mode;
  }
}

void finish_shuffle(Warp& w, uint32_t group) {
  uint64_t results[32];
  for (uint32_t m = group; m; m &= m - 1) {
    const int lane = __builtin_ctz(m);
    Thread& t = *w.lanes[lane];
    const int width = t.width <= 0 || t.width > 32 ? 32 : t.width;
    const int low = lane & ~(width - 1), high = low + width - 1;
    int source = lane;
    switch (t.mode) {
      case 0: source = low + (t.arg & (width - 1)); break;
      case 1: source = lane - t.arg < low ? lane : lane - t.arg; break;
      case 2: source = lane + t.arg > high ? lane : lane + t.arg; break;
      default: source = (lane ^ t.arg) > high ? lane : lane ^ t.arg;
    }
    source &= 31;
    if (group >> source & 1) {
      results[lane] = w.lanes[source]->value;
      continue;
    }
    results[lane] = ~0ull;
    // Trees of up and down shuffles read past the last active lane and drop the result: only its value is poisoned.
    if (t.mode == 0 || t.mode == 3 || g_launch.strict_shuffle)
      add_report(kShuffle, &t, t.line, nullptr, 0, nullptr, "shuffle reads lane %d, which %s", source,
                 !w.lanes[source] || w.lanes[source]->state == kExited ? "has ended or never was"
                 : t.mask >> source & 1                               ? "does not take part"
                                                                      : "is not in the mask");
  }
  for (uint32_t m = group; m; m &= m - 1) w.lanes[__builtin_ctz(m)]->result = results[__builtin_ctz(m)];
}

uint64_t collective(Warp& w, uint32_t group, const Thread& t) {
  if (t.mode == 9) {  // match_any
    uint32_t same = 0;
    for (uint32_t m = group; m; m &= m - 1)
      if (w.lanes[__builtin_ctz(m)]->value == t.value) same |= m & -m;
    return same;
  }
  bool first = true;
  int64_t acc = 0;
  uint32_t ballot = 0;
  for (uint32_t m = group; m; m &= m - 1) {
    const int64_t v = int64_t(w.lanes[__builtin_ctz(m)]->value);
    if (v) ballot |= m & -m;
    if (first) {
      acc = v;
      first = false;
      continue;
    }
    switch (t.mode) {
      case 3: acc += v; break;
      case 4: acc = std::min(acc, v); break;
      case 5: acc = std::max(acc, v); break;
      case 6: acc &= v; break;
      case 7: acc |= v; break;
      case 8: acc ^= v; break;
      default: break;
    }
  }
  if (t.mode == 0) return ballot == group;
  if (t.mode == 1) return ballot != 0;
  if (t.mode == 2) return ballot;
  return uint64_t(acc);
}

// Lets the lanes of `group` go on; afterwards each knows all that any of them knew.
void release_warp(Warp& w, uint32_t group) {
  const Stamp now = next_event();
  Stamp known[32] = {};
  uint32_t acquired = 0;
  for (uint32_t m = group; m; m &= m - 1) {
    const Thread& t = *w.lanes[__builtin_ctz(m)];
    acquired = std::max(acquired, t.acquired);
    for (int i = 0; i < 32; ++i) known[i] = std::max(known[i], t.known[i]);
  }
  for (uint32_t m = group; m; m &= m - 1) known[__builtin_ctz(m)] = now;
  for (uint32_t m = group; m; m &= m - 1) {
    Thread& t = *w.lanes[__builtin_ctz(m)];
    memcpy(t.known, known, sizeof known);
    t.acquired = acquired;
    t.stamp = now;
    t.state = kReady;
  }
}

void finish(Warp& w, uint32_t group) {
  const WarpOp op = w.lanes[__builtin_ctz(group)]->op;
  if (op == kShuffleOp) {
    finish_shuffle(w, group);
  } else if (op == kCollectiveOp) {
    uint64_t results[32];
    for (uint32_t m = group; m; m &= m - 1) results[__builtin_ctz(m)] = collective(w, group, *w.lanes[__builtin_ctz(m)]);
    for (uint32_t m = group; m; m &= m - 1) w.lanes[__builtin_ctz(m)]->result = results[__builtin_ctz(m)];
  } else if (op == kActiveMaskOp) {
    for (uint32_t m = group; m; m &= m - 1) w.lanes[__builtin_ctz(m)]->result = group;
  } else {
    release_warp(w, group);
    return;
  }
  // Exchanging registers is no memory barrier: only the lanes go on.
  for (uint32_t m = group; m; m &= m - 1) w.lanes[__builtin_ctz(m)]->state = kReady;
}

}  // namespace

// All lanes of the warp have stopped: completes what can be completed. False: no lane waits at a warp operation.
bool resolve_warp(Block& b, uint32_t first) {
  Warp w = look_at(b, first);
  if (!w.waiting) return false;
  uint32_t groups[32], count = 0;
  for (uint32_t rest = w.waiting; rest;) {
    const Thread& t = *w.lanes[__builtin_ctz(rest)];
    uint32_t group = 0;
    for (uint32_t m = rest; m; m &= m - 1)
      if (same_operation(t, *w.lanes[__builtin_ctz(m)])) group |= m & -m;
    groups[count++] = group;
    rest &= ~group;
  }
  bool progress = false;
  for (uint32_t i = 0; i < count; ++i) {
    const Thread& t = *w.lanes[__builtin_ctz(groups[i])];
    if (t.op == kActiveMaskOp || t.op == kVolatileOp || (t.mask & w.live) != groups[i]) continue;
    finish(w, groups[i]);
    progress = true;
  }
  if (progress) return true;
  // Nobody else can arrive any more: the lanes that are together at one place are the active ones.
  for (uint32_t i = 0; i < count; ++i) {
    const Thread& t = *w.lanes[__builtin_ctz(groups[i])];
    if (t.op != kActiveMaskOp && t.op != kVolatileOp) continue;
    finish(w, groups[i]);
    return true;
  }
  Thread& t = *w.lanes[__builtin_ctz(groups[0])];
  // Lanes that wait for other blocks may come yet; if they never do, that is a deadlock.
  for (uint32_t m = t.mask & w.live; m; m &= m - 1)
    if (const State s = w.lanes[__builtin_ctz(m)]->state; s == kWaitCluster || s == kWaitMbarrier) return false;
  if (!(t.mask >> t.lane & 1))
    add_report(kShuffle, &t, t.line, nullptr, 0, nullptr, "%s by a lane that is not in its mask 0x%08x", op_name(t.op),
               t.mask);
  else
    add_report(kShuffle, &t, t.line, nullptr, 0, nullptr, "%s with mask 0x%08x reached by lanes 0x%08x only", op_name(t.op),
               t.mask, groups[0]);
  finish(w, groups[0]);
  return true;
}

void volatile_rendezvous(uint64_t site) {
  if (!g_thread || !g_launch.volatile_sync) return;
  g_thread->op = kVolatileOp;
  g_thread->site = site;
  wait_here(kWaitWarp);
}

}  // namespace emu
