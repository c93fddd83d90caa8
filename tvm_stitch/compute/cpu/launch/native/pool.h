// SPDX-License-Identifier: Apache-2.0
// The threads that run regions, and how they find them.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "region.h"

namespace tvm_stitch::parallel {
namespace {

thread_local int depth = 0;  // regions that this thread is in
thread_local auto thread_id = static_cast<pid_t>(syscall(SYS_gettid));

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    CPU_ZERO(&allowed_);
    pthread_getaffinity_np(pthread_self(), sizeof allowed_, &allowed_);
    sigset_t all, before;  // signals are for the program's own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (int i = 1; i < threads; ++i) {
      auto* start = new Start{this, i};
      pthread_t thread;
      if (pthread_create(&thread, &detached, &Pool::Main, start) != 0) {
        delete start;  // the others take its pieces
        break;
      }
      pthread_setname_np(thread, "tvm_stitch");
    }
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  int Launch(Task task, void* data, int64_t extent) {
    int index;
    if (threads_ == 1 || extent == 1 || depth > 0 || (index = Acquire()) < 0) return Serially(task, data);
    ++depth;
    if (running_.fetch_add(1) == 0) KeepApart();
    Region& region = *regions_[index].load();
    region.task = task;
    region.data = data;
    region.generation.fetch_add(1);
    region.caller.store(thread_id);
    region.inside.store(extent > 1);
    region.fetched.store(false);
    if (extent > 1) {
      Divide(&region, index, extent);
    } else {
      Gather(&region, index);
    }
    auto done = [&] { return region.left.value.load() == 0; };
    if (!Spin(region.patience, done)) Pull(index, done);
    int result = region.Result();
    running_.fetch_sub(1);
    owned_.fetch_and(~(uint64_t{1} << index));
    --depth;
    return result;
  }

 private:
  struct Start {
    Pool* pool;
    int worker;
  };

  static int Serially(Task task, void* data) {
    Group alone{nullptr, 1};
    ++depth;
    int result = task(0, &alone, data);
    --depth;
    return result;
  }

  // Returns the index of a region that is free, or -1.
  int Acquire() {
    uint64_t owned = owned_.load();
    while (~owned != 0) {
      int index = __builtin_ctzll(~owned);
      if (!owned_.compare_exchange_weak(owned, owned | uint64_t{1} << index)) continue;
      if (regions_[index].load() == nullptr) regions_[index].store(new Region);
      return index;
    }
    return -1;
  }

  // Waits until a region is done. Workers that lost their processor in a piece are moved to this one, which the caller
  // leaves: else they may wait for milliseconds.
  template <typename Done>
  void Pull(int index, Done done) {
    Event& left = regions_[index].load()->left;
    bool moved = false;
    while (!done()) {
      int here = sched_getcpu();
      cpu_set_t single;
      CPU_ZERO(&single);
      for (int i = 1; i < threads_ && here >= 0 && CPU_COUNT(&allowed_) > 1; ++i) {
        if (inside_[i].load() != index + 1 || IsRunning(ids_[i].load())) continue;
        CPU_SET(here, &single);
        moved |= sched_setaffinity(ids_[i].load(), sizeof single, &single) == 0;
      }
      uint32_t old = left.value.load();
      if (!done()) left.Sleep(old, &kLookAgain);
    }
    if (!moved) return;
    avoided_ = CPU_COUNT(&allowed_) < threads_ ? -1 : sched_getcpu();
    for (int i = 1; i < threads_; ++i) Avoid(ids_[i].load(), avoided_);
  }

  // Moves a caller that lost its processor in a piece to this processor, which the worker leaves.
  void FetchCaller(pid_t caller) {
    int here = sched_getcpu();
    cpu_set_t single, before;
    CPU_ZERO(&single);
    if (here < 0 || IsRunning(caller) || sched_getaffinity(caller, sizeof before, &before) != 0) return;
    if (!CPU_ISSET(here, &before)) return;
    CPU_SET(here, &single);
    sched_setaffinity(caller, sizeof single, &single);
    sched_setaffinity(caller, sizeof before, &before);  // only the move stays
  }

  // Keeps workers off the caller's processor. A worker that is woken there would run only when the caller sleeps.
  void KeepApart() {
    int here = sched_getcpu();
    if (here < 0 || here == avoided_.load() || CPU_COUNT(&allowed_) < threads_) return;
    auto now = Clock::now();
    if (now - moved_ < kKeepApart) return;
    moved_ = now;
    avoided_ = here;
    for (int i = 1; i < threads_; ++i) Avoid(ids_[i].load(), here);
  }

  void Avoid(pid_t thread, int processor) {
    if (thread == 0) return;
    cpu_set_t others = allowed_;
    if (processor >= 0) CPU_CLR(processor, &others);
    if (CPU_COUNT(&others) > 0) sched_setaffinity(thread, sizeof others, &others);
  }

  void Divide(Region* region, int index, int64_t extent) {
    Division& division = region->division = Division(extent, threads_);
    uint64_t pieces[kMostThreads];
    uint32_t total = 0;
    for (int i = 0; i < division.shares; ++i) total += pieces[i] = division.SliceOf(i).Pieces(division.block);
    region->left.value.store(total);
    region->shares.store(division.shares);
    for (int i = 0; i < division.shares; ++i) {
      region->share[i].word.store(uint64_t{region->generation.load()} << 32 | pieces[i] << 16);
    }
    Announce(index);
    region->patience = kSpinLast;
    Work(region, 0, index);
    region->inside.store(false);
    active_.fetch_and(~(uint64_t{1} << index));
  }

  void Gather(Region* region, int index) {
    region->barrier.broken.store(false);
    region->left.value.store(kAll);
    region->joined.store(uint64_t{region->generation.load()} << 32 | 0x10000);
    Announce(index);
    Spin(kGather, [&] {
      int missing = threads_ - running_.load();
      return missing <= 0 || static_cast<int>(region->joined.load() & 0xffff) >= threads_ - 1;
    });
    active_.fetch_and(~(uint64_t{1} << index));
    auto tasks = static_cast<int32_t>(1 + (region->joined.fetch_and(~uint64_t{0x10000}) & 0xffff));
    region->group = {&region->barrier, tasks};
    region->left.value.store(tasks);
    region->started.value.store(region->generation);
    region->started.Wake(kAll);
    region->patience = kSpinBarrier;
    Member(region, 0);
  }

  // Runs a group's task.
  void Member(Region* region, int32_t task) {
    int status = region->task(task, &region->group, region->data);
    region->Note(status);
    if (status != 0) {  // the others wait for this thread
      region->barrier.broken.store(true);
      region->barrier.phase.value.fetch_add(1);
      region->barrier.phase.Wake(kAll);
    }
    region->Done(1);
  }

  void Announce(int index) {
    active_.fetch_or(uint64_t{1} << index);
    WakeSome();
  }

  // Each woken thread wakes two more, so that no thread makes many calls of the system.
  void WakeSome() {
    if (signal_.asleep.load() == 0 || running_.load() >= threads_) return;
    signal_.value.fetch_add(1);
    signal_.Wake(2);
  }

  // Runs pieces until none is left to take. Returns their number. Worker 0 is the caller.
  uint32_t Work(Region* region, int worker, int index) {
    uint32_t done = 0;
    int shares = region->shares.load();
    bool leave = false;
    auto start = Clock::now();
    uint32_t generation = region->generation.load();
    for (int i = 0; i < shares && !leave; ++i) {
      int share = (worker + i) % shares;
      for (int64_t piece; !leave && region->Take(share, i != 0, &piece); ++done) {
        if (worker != 0 && done == 0) {
          inside_[worker].store(index + 1);
          WakeSome();
        }
        if (!region->failed.load(std::memory_order_relaxed)) {
          region->Note(region->division.Run(region->task, region->data, share, piece));
        }
        leave = worker != 0 && running_.load() > threads_;
      }
    }
    if (done == 0) return 0;
    inside_[worker].store(0);
    region->Done(done);
    auto piece = std::chrono::duration_cast<Microseconds>(Clock::now() - start) / done;
    if (worker == 0) {
      region->inside.store(false);
      region->patience = std::max(kSpinLast, 2 * piece);
    } else if (!leave && !Spin(std::max(kSpinBarrier, 3 * piece), [&] {
                 return !region->inside.load() || region->generation.load() != generation;
               }) &&
               !region->fetched.exchange(true)) {
      FetchCaller(region->caller.load());
    }
    return done;
  }

  bool Join(Region* region) {
    uint64_t now = region->joined.load();
    do {
      if ((now & 0x10000) == 0) return false;
    } while (!region->joined.compare_exchange_weak(now, now + 1));
    WakeSome();
    auto generation = static_cast<uint32_t>(now >> 32);
    WaitUntil(&region->started, kSpinBarrier, [&] { return region->started.value.load() == generation; });
    Member(region, static_cast<int32_t>(now & 0xffff) + 1);
    return true;
  }

  // Works in the regions that are active. Returns whether there was any work.
  bool Help(int worker) {
    uint64_t active = active_.load();
    if (active == 0 || running_.load() >= threads_) return false;
    bool worked = false;
    if (running_.fetch_add(1) < threads_) {
      for (; active != 0; active &= active - 1) {
        int index = __builtin_ctzll(active);
        Region* region = regions_[index].load();
        worked |= Join(region) || Work(region, worker, index) != 0;
      }
    }
    running_.fetch_sub(1);
    return worked;
  }

  void Loop(int worker) {
    depth = 1;
    ids_[worker].store(thread_id);
    Avoid(thread_id, avoided_);
    ShortSlices();
    while (true) {
      bool worked = Spin(kSpinIdle, [&] { return Help(worker) || running_.load() >= threads_; }, kPolite);
      if (worked && running_.load() < threads_) continue;
      signal_.asleep.fetch_add(1);
      uint32_t old = signal_.value.load();
      if (active_.load() == 0 || running_.load() >= threads_) {
        syscall(SYS_futex, &signal_.value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
      }
      signal_.asleep.fetch_sub(1);
    }
  }

  static void* Main(void* given) {
    Start start = *static_cast<Start*>(given);
    delete static_cast<Start*>(given);
    start.pool->Loop(start.worker);
    return nullptr;
  }

  const int threads_;
  cpu_set_t allowed_;
  std::atomic<pid_t> ids_[kMostThreads]{};
  std::atomic<int> inside_[kMostThreads]{};  // the number of the region, from 1 on, of which a worker runs pieces
  std::atomic<int> avoided_{-1};         // the processor of a caller
  Clock::time_point moved_{};            // the last time it changed
  alignas(64) std::atomic<uint64_t> active_{0};  // regions with pieces to take
  alignas(64) std::atomic<int> running_{0};      // threads in regions: callers, and workers that joined one
  alignas(64) std::atomic<uint64_t> owned_{0};   // regions in use
  alignas(64) Event signal_;
  std::atomic<Region*> regions_[kMostRegions]{};
};

}  // namespace
}  // namespace tvm_stitch::parallel
