// SPDX-License-Identifier: Apache-2.0
// Fibers: a stack for each CUDA thread that has begun, a switch between them, and the signals that end a bad thread.
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#if !defined(__x86_64__)
#define EMU_UCONTEXT 1
#endif
#if defined(EMU_UCONTEXT)
#include <ucontext.h>
#endif

#include <vector>

#include "emulator.h"

namespace emu {

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

#if !defined(EMU_UCONTEXT)
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
  if (!--t->block->live) block_ended(*t->block);
  emu_switch(&t->sp, g_scheduler_sp);
  __builtin_unreachable();
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

}  // namespace

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

void drop_stacks(Block& b) {
  for (Thread& t : b.threads)
    if (t.stack) {
      g_free_stacks.push_back(t.stack);
      t.stack = nullptr;
    }
}

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

void begin_run(void* entry, void** args, double seconds) {
  g_entry = reinterpret_cast<Entry>(entry);
  g_args = args;
  install_signals();
  start_timer(seconds);
}

void end_run() {
  stop_timer();
  restore_signals();
}

}  // namespace emu
