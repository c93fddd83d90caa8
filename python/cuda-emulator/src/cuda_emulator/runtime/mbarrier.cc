// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that count bytes (mbarrier), and the stores to a cluster's shared memory that complete them
// (st.async). A store arrives at the latest when its barrier's phase completes: until then nobody may read the place, and
// only who waited for that phase, or met a thread that did, may read it afterwards. Its data is written when the phase
// completes. A store also releases to them what its thread did and knew before it (complete_tx is a release of cluster
// scope). What plain arrivals release is not modelled: accesses that they alone order count as races.
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
  m.last[m.completed % 2] = std::move(m.message);
  m.message.reset();
  m.ids[m.completed++ % 2] = m.id;
  m.id = next_event();
}

// Where the cluster of a block has a thread.
uint32_t in_cluster(const Block& of_thread, uint32_t who) { return of_thread.rank * g_launch.threads + (who & 1023); }

// Adds what the running thread did and knows to what a phase releases. What it does from now on is later.
void release_by(Mbarrier& m, Thread& t) {
  if (!m.message) m.message = std::make_shared<Message>();
  Message& to = *m.message;
  Block& b = *t.block;
  to.threads.resize(size_t(g_launch.cluster_size) * g_launch.threads);
  to.blocks.resize(g_launch.cluster_size);
  to.blocks[b.rank] = std::max(to.blocks[b.rank], b.stamp);
  const uint32_t first = (t.who & 1023) - t.lane;
  for (uint32_t lane = 0; lane < 32 && first + lane < b.threads.size(); ++lane) {
    Stamp& known = to.threads[in_cluster(b, first + lane)];
    known = std::max(known, t.known[lane]);
  }
  t.stamp = to.threads[in_cluster(b, t.who)] = next_event();
  for (const std::vector<uint32_t>* ids : {&t.awaited, &b.awaited})
    for (size_t i = ids->size() - std::min(ids->size(), 2 * kMessages); i < ids->size(); ++i)
      if (std::find(to.awaited.begin(), to.awaited.end(), (*ids)[i]) == to.awaited.end())
        to.awaited.push_back((*ids)[i]);
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

bool told_of_phase(const Thread& t, uint32_t id) {
  return std::any_of(t.messages.begin(), t.messages.end(), [id](const auto& m) {
    return std::find(m->awaited.begin(), m->awaited.end(), id) != m->awaited.end();
  });
}

bool told_of_reads(const Thread& t, const Block& owner, uint64_t address) {
  const auto found = owner.readers.find(address >> 3);
  if (found == owner.readers.end() || owner.cluster != t.block->cluster) return false;
  const uint32_t first = owner.rank * g_launch.threads;
  for (uint32_t thread = 0; thread < g_launch.threads; ++thread) {
    const Stamp read = found->second[thread];
    if (read && std::none_of(t.messages.begin(), t.messages.end(), [&](const auto& m) {
          return read < m->threads[first + thread] || read < m->blocks[owner.rank];
        }))
      return false;
  }
  return true;
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
  const Mbarrier made{p, count, count, 0, 0, next_event(), {}, t.who, 0, 0, kNever, {}, nullptr, {}};
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
  release_by(m, t);
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
  for (uint32_t i = 0; i < 2 && i < m.completed; ++i) {
    t.awaited.push_back(m.ids[i]);
    if (!m.last[i] || std::find(t.messages.begin(), t.messages.end(), m.last[i]) != t.messages.end()) continue;
    t.messages.push_back(m.last[i]);
    if (t.messages.size() > kMessages) t.messages.pop_front();
  }
  return 1;
}
}
