// SPDX-License-Identifier: Apache-2.0
// Runs a launch: one fiber per CUDA thread, all on one OS thread, switched only where a thread waits.
//
// A thread runs until it waits (barrier, warp operation) or ends. When every lane of a warp has stopped, warp operations
// whose lanes are all there complete; when every thread of a block has stopped, its barrier opens; then cluster and grid
// barriers. If nothing can go on, that is a deadlock, with the reason known.
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <algorithm>
#include <cstdio>
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

// ---- fibers ----------------------------------------------------------------------------------------------------------
constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kStacksPerChunk = 64;
constexpr size_t kGuardedStacks = 16000;  // each guard page splits a mapping, and a process may have 65530 of them

std::vector<char*> g_free_stacks;
size_t g_stack_count = 0;
void* g_scheduler_sp = nullptr;

char* take_stack() {
  if (g_free_stacks.empty()) {
    void* p = mmap(nullptr, kStackBytes * kStacksPerChunk, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    char* base = static_cast<char*>(p);
    for (size_t i = kStacksPerChunk; i-- > 0;) {
      if (g_stack_count++ < kGuardedStacks) mprotect(base + i * kStackBytes, 4096, PROT_NONE);
      g_free_stacks.push_back(base + i * kStackBytes);
    }
  }
  char* s = g_free_stacks.back();
  g_free_stacks.pop_back();
  return s;
}

void fiber_main();

#if defined(__x86_64__)
extern "C" void emu_switch(void** save, void* load);
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch, .-emu_switch
)");
void prepare_fiber(Thread& t) {
  void** top = reinterpret_cast<void**>(t.stack + kStackBytes);
  *--top = nullptr;  // the return address of a call that never returns: aligns the stack as functions expect it
  *--top = reinterpret_cast<void*>(&fiber_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  t.sp = top;
}
#else
void emu_switch(void** save, void* load) {
  ucontext_t self;
  *save = &self;
  swapcontext(&self, static_cast<ucontext_t*>(load));
}
void prepare_fiber(Thread& t) {
  // The context lives at the low end of the fiber's own stack, above the guard page.
  auto* c = reinterpret_cast<ucontext_t*>(t.stack + 8192);
  getcontext(c);
  c->uc_stack.ss_sp = t.stack + 16384;
  c->uc_stack.ss_size = kStackBytes - 16384;
  c->uc_link = nullptr;
  makecontext(c, reinterpret_cast<void (*)()>(&fiber_main), 0);
  t.sp = c;
}
#endif

using Entry = void (*)(void**);
Entry g_entry = nullptr;
void** g_args = nullptr;

void fiber_main() {
  g_entry(g_args);
  Thread* t = g_thread;
  t->state = kExited;
  --t->block->live;
  emu_switch(&t->sp, g_scheduler_sp);
  __builtin_unreachable();
}

void resume(Thread& t) {
  if (t.state == kNew) {
    t.stack = take_stack();
    if (!t.stack) {
      add_report(kCrash, &t, 0, nullptr, 0, nullptr, "no memory for another stack");
      g_launch.aborted = true;
      return;
    }
    prepare_fiber(t);
  }
  t.state = kReady;
  g_thread = &t;
  emu_switch(&g_scheduler_sp, t.sp);
  g_thread = nullptr;
  if (t.state == kExited) {
    g_free_stacks.push_back(t.stack);
    t.stack = nullptr;
  }
}

// ---- signals: an access outside every array, a stack overflow, an integer division by zero -----------------------------
const int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction g_old_actions[4];
stack_t g_old_stack;
alignas(16) char g_signal_stack[64 << 10];

void on_signal(int number, siginfo_t* info, void*) {
  Thread* t = g_thread;
  if (!t) {  // not in a kernel: let the process see it
    for (int i = 0; i < 4; ++i)
      if (kSignals[i] == number) sigaction(number, &g_old_actions[i], nullptr);
    return;
  }
  const uint64_t at = reinterpret_cast<uint64_t>(info->si_addr), stack = reinterpret_cast<uint64_t>(t->stack);
  if (number == SIGFPE)
    add_report(kCrash, t, 0, nullptr, 0, nullptr, "integer division by zero");
  else if (at >= stack && at < stack + 4096)
    add_report(kCrash, t, 0, nullptr, 0, nullptr, "the thread's local variables need more than %zu KiB", kStackBytes >> 10);
  else
    add_report(kOutOfBounds, t, 0, nullptr, 0, nullptr, "access of address 0x%llx, which is in no array",
               (unsigned long long)at);
  abort_launch();
}

// The time limit. The first signal lets the next memory access give up; the second one comes to a loop that makes none.
struct sigaction g_old_timer_action;
int g_timer_ticks = 0;

void on_timer(int) {
  if (!g_launch.active) return;
  g_launch.budget = -1;
  if (++g_timer_ticks < 2 || !g_thread) return;
  add_report(kTimeout, g_thread, 0, nullptr, 0, nullptr, "the kernel ran longer than the limit allows");
  abort_launch();
}

void start_timer(double seconds) {
  g_timer_ticks = 0;
  struct sigaction action{};
  action.sa_handler = on_timer;
  action.sa_flags = SA_NODEFER | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGVTALRM, &action, &g_old_timer_action);
  itimerval timer{};
  timer.it_value.tv_sec = time_t(seconds);
  timer.it_value.tv_usec = suseconds_t((seconds - double(time_t(seconds))) * 1e6) + 1;
  timer.it_interval.tv_usec = 500000;
  setitimer(ITIMER_VIRTUAL, &timer, nullptr);
}

void stop_timer() {
  const itimerval none{};
  setitimer(ITIMER_VIRTUAL, &none, nullptr);
  sigaction(SIGVTALRM, &g_old_timer_action, nullptr);
}

void install_signals() {
  stack_t ss{};
  ss.ss_sp = g_signal_stack;
  ss.ss_size = sizeof g_signal_stack;
  sigaltstack(&ss, &g_old_stack);
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 4; ++i) sigaction(kSignals[i], &action, &g_old_actions[i]);
}

void restore_signals() {
  for (int i = 0; i < 4; ++i) sigaction(kSignals[i], &g_old_actions[i], nullptr);
  if (!(g_old_stack.ss_flags & SS_DISABLE)) sigaltstack(&g_old_stack, nullptr);
}

// ---- warp operations -------------------------------------------------------------------------------------------------
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
  for (uint32_t m = group; m; m &= m - 1) {
    const Thread& t = *w.lanes[__builtin_ctz(m)];
    for (int i = 0; i < 32; ++i) known[i] = std::max(known[i], t.known[i]);
  }
  for (uint32_t m = group; m; m &= m - 1) known[__builtin_ctz(m)] = now;
  for (uint32_t m = group; m; m &= m - 1) {
    Thread& t = *w.lanes[__builtin_ctz(m)];
    memcpy(t.known, known, sizeof known);
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
    // Asking for the mask orders nothing: only the lanes go on.
    for (uint32_t m = group; m; m &= m - 1) {
      w.lanes[__builtin_ctz(m)]->result = group;
      w.lanes[__builtin_ctz(m)]->state = kReady;
    }
    return;
  }
  release_warp(w, group);
}

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
  if (!(t.mask >> t.lane & 1))
    add_report(kShuffle, &t, t.line, nullptr, 0, nullptr, "%s by a lane that is not in its mask 0x%08x", op_name(t.op),
               t.mask);
  else
    add_report(kShuffle, &t, t.line, nullptr, 0, nullptr, "%s with mask 0x%08x reached by lanes 0x%08x only", op_name(t.op),
               t.mask, groups[0]);
  finish(w, groups[0]);
  return true;
}

// ---- barriers --------------------------------------------------------------------------------------------------------
void release_block(Block& b, State from, Stamp now) {
  b.stamp = now;
  for (Thread& t : b.threads) {
    if (t.state != from) continue;
    t.stamp = now;
    for (Stamp& k : t.known) k = now;
    t.state = kReady;
    t.cluster_arrived = false;
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
    uint32_t waiting = 0, live = 0;
    for (size_t i = first; i < end; ++i) {
      if (!blocks[i]) continue;
      for (const Thread& t : blocks[i]->threads) waiting += t.state == kWaitCluster;
      live += blocks[i]->live;
    }
    if (!waiting || waiting != live) continue;
    const Stamp now = next_event();
    g_launch.cluster_stamps[blocks[first]->cluster] = now;
    for (size_t i = first; i < end; ++i) {
      report_missing(*blocks[i], "cluster");
      release_block(*blocks[i], kWaitCluster, now);
    }
    progress = true;
  }
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
  for (Stamp& s : g_launch.cluster_stamps) s = now;
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
    int at[4] = {};
    const Thread* first = nullptr;
    for (const Thread& t : b->threads) {
      if (t.state == kExited) continue;
      if (!first) first = &t;
      ++at[t.state == kWaitBlock ? 0 : t.state == kWaitCluster ? 1 : t.state == kWaitGrid ? 2 : 3];
    }
    if ((at[0] != 0) + (at[1] != 0) + (at[2] != 0) > 1)
      add_report(kDivergentBarrier, first, first->line, nullptr, 0, nullptr,
                 "threads of one block wait at barriers of different kinds (block %d, cluster %d, grid %d)", at[0], at[1],
                 at[2]);
    add_report(kDeadlock, first, first->line, nullptr, 0, nullptr,
               "no thread can go on: of this block %d wait at a block, %d at a cluster, %d at a grid barrier", at[0], at[1],
               at[2]);
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
  } while (resolve_clusters() || resolve_grid());
  for (Block* b : g_launch.residents)
    if (b->live) {
      report_deadlock();
      g_launch.aborted = true;
      return;
    }
}

void drop_stacks(Block& b) {
  for (Thread& t : b.threads)
    if (t.stack) {
      g_free_stacks.push_back(t.stack);
      t.stack = nullptr;
    }
}

}  // namespace

void abort_launch() {
  g_launch.aborted = true;
  emu_switch(&g_thread->sp, g_scheduler_sp);
  __builtin_unreachable();
}

void wait_here(State state) {
  Thread* t = g_thread;
  t->state = state;
  emu_switch(&t->sp, g_scheduler_sp);
}

void volatile_rendezvous(uint64_t site) {
  if (!g_thread || !g_launch.volatile_sync) return;
  g_thread->op = kVolatileOp;
  g_thread->site = site;
  wait_here(kWaitWarp);
}

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
  uint32_t flags;  // 1 strict_rewrite, 2 volatile accesses run in lock step, 4 strict_shuffle, 8 poison shared memory
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
  l.cluster_stamps.assign(blocks / l.cluster_size, l.start);

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

  g_entry = reinterpret_cast<Entry>(q->entry);
  g_args = q->args;
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
  install_signals();
  start_timer(q->seconds);
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
  stop_timer();
  restore_signals();
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
