// SPDX-License-Identifier: Apache-2.0
// Waiting of threads: they spin for some time, then sleep in the kernel.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace tvm_stitch::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::microseconds;

// Measured on two cores of an AMD EPYC (Zen 4): docs/results/cpu.md. A woken thread runs after 10 to 60 us.
constexpr Microseconds kSpinIdle{200};    // a worker waits for the next region
constexpr Microseconds kPolite{50};       // of which it does not let other threads run
constexpr Microseconds kNever{3'600'000'000};
constexpr Microseconds kSpinLast{20};     // a caller waits for pieces that others run
constexpr Microseconds kSpinBarrier{50};  // a thread waits for the others of its group
constexpr Microseconds kGather{60};       // a caller waits for a group to form
constexpr Microseconds kKeepApart{2000};  // least time between moves of workers
constexpr timespec kLookAgain{0, 500'000};  // a caller that sleeps looks for workers that lost their processor
constexpr uint64_t kSliceNs = 100'000;    // the shortest slice that Linux gives

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A number on whose change threads wait.
struct Event {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> asleep{0};

  void Sleep(uint32_t old, const timespec* most = nullptr) {
    asleep.fetch_add(1);
    syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, old, most, nullptr, 0);
    asleep.fetch_sub(1);
  }
  void Wake(int threads) {
    if (asleep.load() != 0) syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
  }
};

// Spins until `done`, at most for `most`. Returns whether it is done. After `polite` it lets other threads run that are
// queued for this processor. They keep it for milliseconds, so threads that others wait for do not.
template <typename Done>
bool Spin(Microseconds most, Done done, Microseconds polite = kNever) {
  for (auto start = Clock::now();;) {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      Pause();
    }
    auto spent = Clock::now() - start;
    if (spent >= most) return done();
    if (spent >= polite) sched_yield();
  }
}

template <typename Done>
void WaitUntil(Event* event, Microseconds spin, Done done) {
  if (Spin(spin, done)) return;
  while (true) {
    uint32_t old = event->value.load();
    if (done()) return;
    event->Sleep(old);
  }
}

// Asks the kernel to run this thread soon and for a short time, in the place of one that has spun for long. Its share
// of the processor stays the same. Kernels before 6.12 refuse it.
void ShortSlices() {
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice, deadline, period;
  } attributes{48, SCHED_OTHER, 0, getpriority(PRIO_PROCESS, 0), 0, kSliceNs, 0, 0};
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

// Whether a thread has a processor now: its time on processors grows.
bool IsRunning(pid_t thread) {
  auto clock = static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6);  // CLOCK_THREAD_CPUTIME_ID of it
  timespec before{}, after{};
  clock_gettime(clock, &before);
  Spin(Microseconds{3}, [] { return false; });
  return clock_gettime(clock, &after) == 0 && (after.tv_nsec != before.tv_nsec || after.tv_sec != before.tv_sec);
}

}  // namespace
}  // namespace tvm_stitch::parallel
