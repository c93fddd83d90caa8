// SPDX-License-Identifier: Apache-2.0
// The hooks that instrumented kernels call at every access, and the checks behind them.
//
// Two accesses of one granule by different threads, one of them a write, race unless a barrier lies between. What orders
// them: a block barrier (same block), a grid barrier, a synchronisation of lanes of one warp, whose threads keep what
// they know of each other (`known`), or a cluster barrier, as far as arrivals released them (cluster.cc). A granule keeps its last write and a summary of the reads since,
// which loses no race: whoever is dropped from it is ordered before, or covered by, what is kept.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "emulator.h"

namespace emu {

static std::vector<ReportRecord> g_reports;
constexpr size_t kMaxReports = 256;
constexpr int kMaxAlike = 4;  // records of one kind for one array in one launch; later ones are only counted

Dim thread_of(uint32_t who) {
  const uint32_t t = who & 1023, x = g_launch.block.x, y = g_launch.block.y;
  return Dim{t % x, t / x % y, t / (x * y)};
}

Dim block_of(uint32_t who) {
  const uint32_t b = who >> 10, x = g_launch.grid.x, y = g_launch.grid.y;
  return Dim{b % x, b / x % y, b / (x * y)};
}

void add_report(ReportKind kind, const Thread* t, int line, const Slot* slot, int64_t byte_offset, const uint32_t* other,
                const char* format, ...) {
  if (slot && !slot->itemsize) slot = nullptr;  // shared memory that no block of this process has used yet
  const char* array = slot ? slot->name : "";
  int alike = 0;
  for (ReportRecord& r : g_reports) {
    if (r.kind != kind || strcmp(r.array, array) != 0) continue;
    if (++alike == kMaxAlike) {
      ++r.count;
      return;
    }
  }
  if (g_reports.size() >= kMaxReports) return;
  ReportRecord r{};
  r.kind = kind;
  r.line = line;
  r.count = 1;
  r.offset = slot ? byte_offset / int64_t(slot->itemsize) - (byte_offset % int64_t(slot->itemsize) < 0) : -1;
  if (t) {
    const Dim b = block_of(t->who), i = thread_of(t->who);
    memcpy(r.block, &b, sizeof b);
    memcpy(r.thread, &i, sizeof i);
  }
  if (other) {
    const Dim b = block_of(*other), i = thread_of(*other);
    memcpy(r.other_block, &b, sizeof b);
    memcpy(r.other_thread, &i, sizeof i);
    r.has_other = 1;
  }
  snprintf(r.array, sizeof r.array, "%s", array);
  va_list args;
  va_start(args, format);
  vsnprintf(r.message, sizeof r.message, format, args);
  va_end(args);
  g_reports.push_back(r);
}

void clear_reports() { g_reports.clear(); }

namespace {

// Is everything that `a` stands for ordered before what thread `t` does now? Stamps before `floor` do not exist.
inline bool ordered(const Access& a, uint8_t level, const Thread* t, Stamp floor) {
  if (a.stamp < floor || a.stamp < g_launch.grid_stamp || (a.who == t->who && level == kThread)) return true;
  if (level == kAsync) return awaited(*t, a.lanes);
  const Block* b = t->block;
  if (level < kCluster && (a.who >> 10) == b->linear) {
    if (a.stamp < b->stamp) return true;
    if (level != kBlock && !(((a.who ^ t->who) & 1023) >> 5)) {
      uint32_t lanes = level == kThread ? 1u << (a.who & 31) : a.lanes;
      lanes &= ~(1u << t->lane);
      for (; lanes; lanes &= lanes - 1) {
        const uint32_t lane = uint32_t(__builtin_ctz(lanes));
        if (a.stamp >= t->known[lane] && !thread_released(*b, (a.who & 1023 & ~31u) + lane, a, t)) return false;
      }
      return true;
    }
  }
  return b->completed && level != kGrid && cluster_ordered(a, level, t);
}

inline void set_alone(Access& a, uint8_t& level, const Thread* t) {
  a.who = t->who;
  a.stamp = t->stamp;
  a.lanes = 1u << t->lane;
  a.phase = t->phase;
  level = kThread;
}

// Adds thread `t` to the summary: it replaces what is ordered before it and widens what is not.
void join(Access& a, uint8_t& level, const Thread* t, Stamp floor) {
  if (!a.stamp || ordered(a, level, t, floor)) return set_alone(a, level, t);
  if (level == kGrid) return;
  uint8_t wider;
  if ((a.who >> 10) != t->block->linear)
    wider = g_launch.cluster_size > 1 && cluster_of(a.who) == t->block->cluster ? kCluster : kGrid;
  else if (level >= kBlock)
    wider = level;
  else
    wider = ((a.who ^ t->who) & 1023) >> 5 ? kBlock : kWarp;
  if (wider == kWarp) a.lanes |= 1u << t->lane;
  a.stamp = std::max(a.stamp, t->stamp);
  a.phase = std::max(a.phase, t->phase);
  level = std::max(level, wider);
}

[[gnu::noinline]] void bad_bounds(const Slot* s, uint64_t address, unsigned bytes, bool write) {
  Thread* t = g_thread;
  const char* verb = write ? "write" : "read";
  if (!s) {
    add_report(kOutOfBounds, t, 0, nullptr, 0, nullptr, "%s of %u bytes at an address that is in no array", verb, bytes);
    abort_launch();
  }
  if (s->lo == s->hi && !s->shared) {
    add_report(kOutOfBounds, t, 0, s, int64_t(address - s->start), nullptr,
               "%s of %u bytes in an array that is no argument of this kernel", verb, bytes);
  } else {
    const int64_t size = int64_t(s->hi - s->lo);
    add_report(kOutOfBounds, t, 0, s, int64_t(address - s->lo), nullptr,
               "%s of %u bytes at byte %lld of an array of %lld bytes", verb, bytes, (long long)(address - s->lo),
               (long long)size);
  }
  // Near the array the access does no harm; farther away it would fault, or reach another array.
  const uint64_t margin = s->shared ? kSharedMargin / 2 : kGlobalMargin / 2;
  if (address + margin < s->start || address + bytes > s->start + s->size + margin) abort_launch();
}

[[gnu::noinline]] void too_early_for_a_launch(const Slot& s, uint64_t address, bool write) {
  add_report(kLaunch, g_thread, 0, &s, int64_t(address - s.lo), nullptr,
             "%s before griddepcontrol.wait, in a launch that begins while the kernel in front ends", write ? "write" : "read");
}

bool in_ranges(const Slot& s, uint64_t address, unsigned bytes) {
  if (s.ranges.empty()) return true;
  for (const auto& r : s.ranges)
    if (address >= r.first && address + bytes <= r.second) return true;
  return false;
}

[[gnu::noinline]] void bad_alignment(const Slot* s, uint64_t address, unsigned bytes, bool write) {
  add_report(kMisaligned, g_thread, 0, s, int64_t(address - s->lo), nullptr, "%s of %u bytes at an address that is %u past alignment",
             write ? "write" : "read", bytes, unsigned(address % bytes));
  abort_launch();
}

[[gnu::noinline]] void out_of_time() {
  add_report(kTimeout, g_thread, 0, nullptr, 0, nullptr, "the kernel made more memory accesses, or ran longer, than the limits allow");
  abort_launch();
}

// The slot of an address: null when it is none of ours (a local variable, a constant).
inline Slot* find_slot(uint64_t address) {
  const uint64_t g = address - g_global_base;
  if (g < kGlobalSlots << kGlobalShift) return &g_global_slots[g >> kGlobalShift];
  const uint64_t h = address - g_shared_base;
  if (h < kSharedSlots << kSharedShift) return &g_shared_slots[h >> kSharedShift];
  return nullptr;
}

constexpr bool kAligned = true, kUnaligned = false;

[[gnu::noinline]] void conflict(Slot& s, uint64_t address, const Access& a, const char* then, const char* now) {
  const uint32_t other = a.who;
  add_report(kRace, g_thread, 0, &s, int64_t(address - s.lo), other == g_thread->who ? nullptr : &other,
             "%s after %s, with no barrier between", now, then);
}

// The other block of this thread's cluster whose shared memory this is, or null.
Block* neighbour(uint64_t address) {
  const uint64_t resident = ((address - g_shared_base) >> kSharedShift) / kSharedPerBlock;
  if (address < g_shared_base || resident >= g_launch.residents.size()) return nullptr;
  Block* b = g_launch.residents[resident];
  return b != g_thread->block && b->cluster == g_thread->block->cluster ? b : nullptr;
}

// An access of another block's shared memory: a cluster barrier must lie between it and the owner's start, and another
// between it and the owner's end, whatever the order in which the blocks happen to run here.
bool too_early(const Block& owner, const Slot& s, uint64_t address) {
  if (g_thread->acquired || g_launch.grid_stamp >= owner.start) return false;
  add_report(kRace, g_thread, 0, &s, int64_t(address - s.lo), &owner.threads[0].who,
             "access of the shared memory of a block that may not have begun: no cluster barrier before it");
  return true;
}

void visit(Block& owner, const Slot& s, uint64_t address) {
  const Thread* t = g_thread;
  too_early(owner, s, address);
  if (!owner.live)
    add_report(kRace, t, 0, &s, int64_t(address - s.lo), &owner.threads[0].who,
               "access of the shared memory of a block that has ended: no cluster barrier after it");
  join(owner.visits, owner.visits_level, t, owner.start);
}

template <bool kWrite, bool kAtomic>
void check(Slot& s, uint64_t address, unsigned bytes, bool aligned) {
  Thread* t = g_thread;
  if (--g_launch.budget < 0) out_of_time();
  if (address < s.lo || address + bytes > s.hi || !in_ranges(s, address, bytes)) {
    // An array of a block that has not come to its declaration has no bounds yet.
    if (Block* owner = s.lo == s.hi ? neighbour(address) : nullptr; owner && too_early(*owner, s, address)) return;
    bad_bounds(&s, address, bytes, kWrite);
    return;
  }
  if (aligned && (address & (bytes - 1))) bad_alignment(&s, address, bytes, kWrite);
  if (g_launch.dependent && !t->waited && !s.shared) too_early_for_a_launch(s, address, kWrite);
  if (s.shared && s.resident != int32_t(t->block->resident)) {
    Block& owner = *g_launch.residents[s.resident];
    if (owner.cluster != t->block->cluster) {
      bad_bounds(&s, address, bytes, kWrite);
      return;
    }
    visit(owner, s, address);
  }
  const uint64_t at = address - s.start;
  const uint64_t mask = (1ull << s.granule) - 1;
  if ((at & mask) || (bytes & mask)) set_granule(s, uint8_t(__builtin_ctzll((at | bytes) | 8)));
  Cell* c = s.cells + (at >> s.granule);
  Cell* const end = c + (bytes >> s.granule);
  for (uint64_t where = address; c < end; ++c, where += 1ull << s.granule) {
    const Access w = c->write;
    if (!kWrite || kAtomic) {
      if (w.stamp == 0 || w.stamp < s.floor)
        add_report(kUninitialized, t, 0, &s, int64_t(where - s.lo), nullptr, "read of memory that nobody wrote");
    }
    const bool both_atomic = kAtomic && c->write_atomic;
    if (w.stamp && !both_atomic && (w.who != t->who || c->write_level) && !ordered(w, c->write_level, t, s.floor))
      conflict(s, where, w, c->write_atomic ? "an atomic" : "a write",
               kAtomic ? "an atomic" : kWrite ? "a write" : "a read");
    if (!kWrite) {
      if (s.shared && !t->block->mbarriers.empty() && s.resident == int32_t(t->block->resident)) {
        std::vector<Stamp>& readers = t->block->readers[where >> 3];
        readers.resize(g_launch.threads);
        readers[t->who & 1023] = t->stamp;
      }
      Access& r = c->read;
      if (r.who == t->who && r.stamp == t->stamp && r.phase == t->phase && c->read_level == kThread) continue;
      if (r.stamp >= g_launch.grid_stamp && r.stamp >= s.floor &&
          (c->read_level == kGrid || (c->read_level == kBlock && (r.who >> 10) == t->block->linear &&
                                      r.stamp >= t->block->stamp && r.phase >= t->phase)))
        continue;
      join(r, c->read_level, t, s.floor);
      continue;
    }
    if (c->read.stamp && !ordered(c->read, c->read_level, t, s.floor))
      conflict(s, where, c->read, "a read", kAtomic ? "an atomic" : "a write");
    if (!kAtomic && s.output && w.stamp >= g_launch.start && !c->write_atomic &&
        (w.who != t->who || g_launch.strict_rewrite)) {
      const uint32_t other = w.who;
      add_report(kDoubleWrite, t, 0, &s, int64_t(where - s.lo), &other, "an output element is written twice");
    }
    if (!kAtomic && g_launch.strict_rewrite && !s.output && !s.shared && w.stamp >= g_launch.start && !c->read.stamp) {
      const uint32_t other = w.who;
      add_report(kDoubleWrite, t, 0, &s, int64_t(where - s.lo), &other, "a value is overwritten before anyone read it");
    }
    c->read.stamp = 0;
    c->read_level = kThread;
    if (kAtomic && both_atomic) {
      join(c->write, c->write_level, t, s.floor);
    } else {
      set_alone(c->write, c->write_level, t);
    }
    c->write_atomic = kAtomic;
  }
}

template <bool kWrite>
inline void hook(const void* p, unsigned bytes, bool aligned) {
  const uint64_t address = reinterpret_cast<uint64_t>(p);
  Slot* s = find_slot(address);
  if (!s || !g_thread) return;
  check<kWrite, false>(*s, address, bytes, aligned);
}

template <bool kWrite>
void hook_range(const void* p, unsigned long bytes) {
  const uint64_t address = reinterpret_cast<uint64_t>(p);
  Slot* s = find_slot(address);
  if (!s || !g_thread || !bytes) return;
  check<kWrite, false>(*s, address, unsigned(bytes), kUnaligned);
}

}  // namespace

void block_ended(const Block& b) {
  mbarriers_ended(b);
  if (!b.visits.stamp) return;
  Thread* t = g_thread;
  for (const Thread& other : b.threads) t->acquired = std::max(t->acquired, other.acquired);  // it ends with its last thread
  if (ordered(b.visits, b.visits_level, t, b.start)) return;
  add_report(kRace, t, 0, nullptr, 0, &b.visits.who,
             "the block ends after an access of its shared memory by another block, with no cluster barrier between");
}

Block* block_of_shared(const void* at) {
  const uint64_t resident = ((reinterpret_cast<uint64_t>(at) - g_shared_base) >> kSharedShift) / kSharedPerBlock;
  if (reinterpret_cast<uint64_t>(at) < g_shared_base || resident >= g_launch.residents.size()) return nullptr;
  Block* b = g_launch.residents[resident];
  return b->cluster == g_thread->block->cluster ? b : nullptr;
}

bool async_access_begins(void* at, unsigned bytes, bool write, uint32_t id) {
  const uint64_t address = reinterpret_cast<uint64_t>(at);
  Slot* s = find_slot(address);
  Thread* t = g_thread;
  Block* owner = block_of_shared(at);
  if (!s || !owner) {
    bad_bounds(s, address, bytes, write);
    return false;
  }
  if (owner != t->block && too_early(*owner, *s, address)) return false;
  if (!owner->live)
    add_report(kRace, t, 0, s, int64_t(address - s->lo), &owner->threads[0].who,
               "access of the shared memory of a block that has ended: nobody waited for it");
  if (address < s->lo || address + bytes > s->hi) {
    bad_bounds(s, address, bytes, write);
    return false;
  }
  if (address & (bytes - 1)) bad_alignment(s, address, bytes, write);
  const uint64_t where = address - s->start, mask = (1ull << s->granule) - 1;
  if ((where & mask) || (bytes & mask)) set_granule(*s, uint8_t(__builtin_ctzll((where | bytes) | 8)));
  Cell* c = s->cells + (where >> s->granule);
  for (Cell* const end = c + (bytes >> s->granule); c < end; ++c) {
    if (c->write.stamp && !ordered(c->write, c->write_level, t, s->floor) &&
        !(c->write_level == kAsync && told_of_phase(*t, c->write.lanes)))
      conflict(*s, address, c->write, "a write", write ? "a store on its way" : "an arrival at an mbarrier");
    if (!write) continue;
    const bool by_owner = c->read_level <= kBlock && c->read.who >> 10 == owner->linear;
    if (c->read.stamp && !ordered(c->read, c->read_level, t, s->floor) &&
        !(by_owner && told_of_reads(*t, *owner, address)))
      conflict(*s, address, c->read, "a read", "a store on its way");
    c->read = Access{};
    c->read_level = kThread;
    set_alone(c->write, c->write_level, t);
    c->write.stamp = next_event();
    c->write.lanes = id;
    c->write_level = kAsync;
    c->write_atomic = false;
  }
  return true;
}

}  // namespace emu

using namespace emu;

extern "C" {

#define EMU_HOOKS(N)                                                                              \
  void __tsan_read##N(void* p) { hook<false>(p, N, kAligned); }                                   \
  void __tsan_write##N(void* p) { hook<true>(p, N, kAligned); }                                   \
  void __tsan_unaligned_read##N(void* p) { hook<false>(p, N, kUnaligned); }                       \
  void __tsan_unaligned_write##N(void* p) { hook<true>(p, N, kUnaligned); }                       \
  void __tsan_volatile_read##N(void* p) {                                                         \
    if (find_slot(reinterpret_cast<uint64_t>(p)))                                                 \
      volatile_rendezvous(reinterpret_cast<uint64_t>(__builtin_return_address(0)));               \
    hook<false>(p, N, kAligned);                                                                  \
  }                                                                                               \
  void __tsan_volatile_write##N(void* p) {                                                        \
    if (find_slot(reinterpret_cast<uint64_t>(p)))                                                 \
      volatile_rendezvous(reinterpret_cast<uint64_t>(__builtin_return_address(0)));               \
    hook<true>(p, N, kAligned);                                                                   \
  }                                                                                               \
  void __tsan_unaligned_volatile_read##N(void* p) { __tsan_volatile_read##N(p); }                 \
  void __tsan_unaligned_volatile_write##N(void* p) { __tsan_volatile_write##N(p); }
EMU_HOOKS(1) EMU_HOOKS(2) EMU_HOOKS(4) EMU_HOOKS(8) EMU_HOOKS(16)

void __tsan_read_range(void* p, unsigned long n) { hook_range<false>(p, n); }
void __tsan_write_range(void* p, unsigned long n) { hook_range<true>(p, n); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

void emu_read(const void* p, unsigned bytes) { hook<false>(p, bytes, kAligned); }
void emu_write(const void* p, unsigned bytes) { hook<true>(p, bytes, kAligned); }

void emu_atomic(const void* p, unsigned bytes) {
  const uint64_t address = reinterpret_cast<uint64_t>(p);
  Slot* s = find_slot(address);
  if (!g_thread) return;
  if (!s) bad_bounds(nullptr, address, bytes, true);
  check<true, true>(*s, address, bytes, kAligned);
}

int emu_report_count() { return int(g_reports.size()); }
void emu_report_get(int i, ReportRecord* out) { *out = g_reports[size_t(i)]; }
unsigned emu_report_size() { return sizeof(ReportRecord); }

}  // extern "C"
