// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that count bytes (mbarrier), and the stores to a cluster's shared memory that complete them
// (st.async). A store arrives at the latest when its barrier's phase completes: until then nobody may read the place, and
// only who waited for that phase, or met a thread that did, may read it afterwards. Its data is written when the phase
// completes. What plain arrivals release is not modelled: accesses that they alone order count as races.
#include <algorithm>
#include <cstring>

#include "emulator.h"

extern "C" {
void emu_read(const void* address, unsigned bytes);
void emu_write(const void* address, unsigned bytes);
void* emu_from_shared(unsigned a);
void emu_unsupported(int line, const char* what);
}

namespace emu {

namespace {

Mbarrier* find(Block& b, const void* at) {
  for (Mbarrier& m : b.mbarriers)
    if (m.at == at) return &m;
  return nullptr;
}

// The barrier at an address of the thread's own shared memory, or of its cluster's; none ends the launch.
Mbarrier& need(const void* at, int line, Block** owner = nullptr) {
  Block* b = block_of_shared(at);
  Mbarrier* m = b ? find(*b, at) : nullptr;
  if (!m) {
    add_report(kUninitialized, g_thread, line, nullptr, 0, nullptr, "an mbarrier that nobody initialized");
    abort_launch();
  }
  if (owner) *owner = b;
  return *m;
}

void complete(Mbarrier& m) {
  if (m.arrivals || m.bytes) return;
  for (const AsyncStore& s : m.stores) memcpy(s.to, &s.bits, s.bytes);
  m.stores.clear();
  m.arrivals = m.count;
  m.ids[m.completed++ % 2] = m.id;
  m.id = next_event();
}

constexpr uint32_t kNever = ~0u;

// Whether the running thread knows by a fence and a cluster barrier behind it that the barrier is made.
bool told(const void* at) {
  Block* b = block_of_shared(at);
  const Mbarrier* m = b ? find(*b, at) : nullptr;
  return m && m->fenced != kNever && g_thread->acquired > m->fenced;
}

bool passed(const Mbarrier& m, int parity) { return int(m.completed & 1) != parity; }

}  // namespace

bool awaited(const Thread& t, uint32_t id) {
  auto in = [id](const std::vector<uint32_t>& ids) { return std::find(ids.begin(), ids.end(), id) != ids.end(); };
  return in(t.awaited) || in(t.block->awaited);
}

bool resolve_mbarriers(Block& b) {
  bool progress = false;
  for (Thread& t : b.threads)
    if (t.state == kWaitMbarrier && passed(*find(b, reinterpret_cast<void*>(t.site)), t.arg)) {
      t.state = kReady;
      progress = true;
    }
  return progress;
}

void mbarriers_ended(const Block& b) {
  for (const Mbarrier& m : b.mbarriers)
    if (m.sent > m.awaited)
      add_report(kRace, g_thread, 0, nullptr, 0, nullptr,
                 "the block ends while stores to its shared memory may be on the way, for which nobody waited");
}

}  // namespace emu

using namespace emu;

extern "C" {

void emu_mbarrier_init(unsigned at, unsigned count, int line) {
  void* const p = emu_from_shared(at);
  Thread& t = *g_thread;
  t.line = line;
  emu_write(p, 8);
  Block& b = *t.block;
  if (block_of_shared(p) != &b) {
    add_report(kUnsupported, &t, line, nullptr, 0, nullptr, "an mbarrier of another block is initialized");
    abort_launch();
  }
  const Mbarrier made{p, count, count, 0, 0, next_event(), {}, t.who, 0, 0, kNever, {}};
  if (Mbarrier* m = find(b, p)) {
    add_report(kRace, &t, line, nullptr, 0, nullptr, "an mbarrier is initialized twice");
    *m = made;
  } else {
    b.mbarriers.push_back(made);
  }
}

void emu_mbarrier_fence() {
  for (Mbarrier& m : g_thread->block->mbarriers)
    if (m.who == g_thread->who && m.fenced == kNever) m.fenced = g_thread->arrivals;
}

void emu_mbarrier_expect(unsigned at, unsigned bytes, int line) {
  void* const p = emu_from_shared(at);
  g_thread->line = line;
  Mbarrier& m = need(p, line);
  if (!told(p)) async_access_begins(p, 8, false, 0);
  if (!m.arrivals) {
    add_report(kDivergentBarrier, g_thread, line, nullptr, 0, nullptr, "more arrivals at an mbarrier than it was made for");
    abort_launch();
  }
  m.bytes += bytes;
  --m.arrivals;
  complete(m);
}

void emu_store_async(unsigned to, uint64_t bits, unsigned bytes, unsigned at, int line) {
  void* const target = emu_from_shared(to);
  void* const p = emu_from_shared(at);
  Thread& t = *g_thread;
  t.line = line;
  Block* owner = nullptr;
  if (!told(p) && !async_access_begins(p, 8, false, 0)) return;
  Mbarrier& m = need(p, line, &owner);
  if (block_of_shared(target) != owner) {
    add_report(kUnsupported, &t, line, nullptr, 0, nullptr, "a store whose mbarrier is in the shared memory of another block");
    abort_launch();
  }
  if (!async_access_begins(target, bytes, true, m.id)) return;
  m.stores.push_back({target, bits, bytes});
  m.sent = m.completed + 1;
  m.bytes -= bytes;
  complete(m);
}

// Waits until the phase of a parity is complete; the answer is therefore always yes.
unsigned emu_mbarrier_wait(unsigned at, unsigned parity, int line) {
  void* const p = emu_from_shared(at);
  Thread& t = *g_thread;
  t.line = line;
  if (!told(p)) emu_read(p, 8);
  Block& b = *t.block;
  if (!find(b, p)) need(p, line), emu_unsupported(line, "a wait for an mbarrier of another block");
  if (!passed(*find(b, p), int(parity))) {
    t.site = reinterpret_cast<uint64_t>(p);
    t.arg = int(parity);
    wait_here(kWaitMbarrier);
  }
  Mbarrier& m = *find(b, p);
  m.awaited = m.completed;
  for (uint32_t i = 0; i < 2 && i < m.completed; ++i) t.awaited.push_back(m.ids[i]);
  return 1;
}
}
