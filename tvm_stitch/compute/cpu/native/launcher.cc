// SPDX-License-Identifier: Apache-2.0
// The launcher of parallel regions. Compiled CPU code calls it in the place of TVM's thread pool.
//
// TVM's pool gives each thread an equal share of a region, and the caller waits for all of them. If another program, or
// another library's spinning threads, keep a core busy, the caller waits for a thread that is not running. Here a region is
// divided into more pieces than threads. Each thread first takes the pieces of its own share, in order, then those left in
// other shares, from their ends. The caller takes every piece that nobody else takes. So it only waits for pieces that run.
//
// - Regions that meet at barriers need their threads at the same time. Threads that arrive soon form a group, and the
//   region is divided among these.
// - Threads without work spin for some time, then sleep. So do a caller that waits for the last pieces, and barriers.
// - Several host threads may launch at once. Worker threads join only while fewer threads are running than the pool has.
//   A region inside of a piece runs serially.
// - All models of a process share the pool of the first one, by a function in TVM's registry. That library stays loaded.
// - After a fork, the child makes a new pool for its first region.
//
// Names end in the version of the interface, which changes with the types below.
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <set>
#include <string>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// -- what compiled code has of TVM's interface ------------------------------------------------------------------------

struct Group {  // TVMParallelGroupEnv
  void* barrier;
  int32_t tasks;
};

using Task = int (*)(int32_t task, Group*, void* data);  // FTVMParallelLambda: runs one of `tasks` equal slices of a loop

// -- waiting ----------------------------------------------------------------------------------------------------------

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

// Asks the kernel to run this thread soon and for a short time, in the place of one that has spun for long. Its share of
// the processor stays the same. Kernels before 6.12 refuse it.
void ShortSlices() {
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
  auto clock = static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6);  // CLOCK_THREAD_CPUTIME_ID of that thread
  timespec before{}, after{};
  clock_gettime(clock, &before);
  Spin(Microseconds{3}, [] { return false; });
  return clock_gettime(clock, &after) == 0 && (after.tv_nsec != before.tv_nsec || after.tv_sec != before.tv_sec);
}

// -- regions ----------------------------------------------------------------------------------------------------------

constexpr int kMostThreads = 256, kMostRegions = 64;
constexpr int64_t kPieces = 8;                // least pieces of a thread's share
constexpr int64_t kMostTasks = 1 << 30;       // the task's code computes with sums of two such numbers in 32 bits
constexpr uint32_t kAll = 0x7fffffff;

// The pieces of a thread's share that nobody has taken: generation of the region << 32 | end << 16 | next.
struct alignas(64) Share {
  std::atomic<uint64_t> word{0};
};

struct Barrier {
  std::atomic<uint32_t> arrived{0};
  std::atomic<bool> broken{false};
  Event phase;
};

// How a loop is divided. A piece is a block of `block` iterations, or one iteration at an edge of a share, so that shares
// are equal but for one iteration. Task t of n does the iterations from t * ceil(extent / n) on, as many as that.
struct Division {
  int64_t extent, block, blocks;
  int shares;
  bool exact;  // shares begin at any iteration, not at a block only

  Division() = default;
  Division(int64_t count, int threads) : extent(count), shares(static_cast<int>(std::min<int64_t>(count, threads))) {
    if (extent > kMostTasks) extent = static_cast<int64_t>(shares) * 4 * kPieces;  // the unit is a slice of the loop
    int64_t share = extent / shares, steps = share / (2 * kPieces);
    exact = steps <= 16;
    block = std::max<int64_t>(1, exact ? steps : share / (4 * kPieces));
    for (int64_t each = share / kPieces; extent % shares == 0 && each > std::max<int64_t>(1, steps); --each) {
      if (share % each != 0) continue;
      block = each;
      break;
    }
    blocks = (extent + block - 1) / block;
    block = (extent + blocks - 1) / blocks;
  }

  struct Slice {
    int64_t first, end, first_block, end_block;
    uint32_t Pieces(int64_t block) const {
      if (first_block >= end_block) return static_cast<uint32_t>(end - first);
      int64_t tail = std::max<int64_t>(0, end - end_block * block);
      return static_cast<uint32_t>(first_block * block - first + end_block - first_block + tail);
    }
  };

  Slice SliceOf(int share) const {
    int64_t first = extent * share / shares, end = extent * (share + 1) / shares;
    if (!exact) {
      int64_t first_block = blocks * share / shares, end_block = blocks * (share + 1) / shares;
      return {first_block * block, end_block * block, first_block, end_block};
    }
    return {first, end, (first + block - 1) / block, end == extent ? blocks : end / block};
  }

  int Run(Task task, void* data, int share, int64_t piece) const {
    Slice slice = SliceOf(share);
    Group single{nullptr, static_cast<int32_t>(extent)}, whole{nullptr, static_cast<int32_t>(blocks)};
    if (slice.first_block >= slice.end_block) return task(static_cast<int32_t>(slice.first + piece), &single, data);
    int64_t head = slice.first_block * block - slice.first, middle = slice.end_block - slice.first_block;
    if (piece < head) return task(static_cast<int32_t>(slice.first + piece), &single, data);
    if (piece < head + middle) return task(static_cast<int32_t>(slice.first_block + piece - head), &whole, data);
    return task(static_cast<int32_t>(slice.end_block * block + piece - head - middle), &single, data);
  }
};

// A region lives as long as its pool, and serves many launches, one after the other. A thread that has taken a piece of a
// launch may read it, since the launch ends only after that piece. Others see by the generation that they are late.
struct Region {
  Task task;
  void* data;
  Division division;
  std::atomic<uint32_t> generation{0};
  std::atomic<int> shares{0};
  std::atomic<pid_t> caller{0};
  std::atomic<bool> inside{false};   // whether the caller runs pieces
  std::atomic<bool> fetched{false};  // whether a worker has moved it
  std::atomic<void*> error{nullptr};
  std::atomic<bool> failed{false};
  Event left;  // pieces that are not done
  Microseconds patience{0};  // the time that a piece should take at most
  // Of a group: generation << 32 | whether it is open << 16 | threads that joined it; the launch that has started.
  alignas(64) std::atomic<uint64_t> joined{0};
  Event started;
  Group group{};
  Barrier barrier;
  Share share[kMostThreads];

  bool Take(int index, bool from_end, int64_t* piece) {
    std::atomic<uint64_t>& word = share[index].word;
    uint64_t now = word.load(std::memory_order_acquire);
    while (true) {
      uint64_t next = now & 0xffff, end = now >> 16 & 0xffff;
      if (next >= end) return false;
      if (word.compare_exchange_weak(now, from_end ? now - 0x10000 : now + 1)) {
        *piece = static_cast<int64_t>(from_end ? end - 1 : next);
        return true;
      }
    }
  }

  void Note(int status) {
    if (status == 0) return;
    void* raised = nullptr;
    TVMFFIErrorMoveFromRaised(&raised);
    void* none = nullptr;
    failed.store(true);
    if (raised != nullptr && !error.compare_exchange_strong(none, raised)) TVMFFIObjectDecRef(raised);
  }

  void Done(uint32_t pieces) {
    if (pieces != 0 && left.value.fetch_sub(pieces) == pieces) left.Wake(1);
  }

  int Result() {
    if (!failed.exchange(false)) return 0;
    if (void* raised = error.exchange(nullptr)) {
      TVMFFIErrorSetRaised(raised);
      TVMFFIObjectDecRef(raised);
    } else {
      TVMFFIErrorSetRaisedFromCStr("RuntimeError", "tvm_stitch: a piece of a parallel region failed without an error");
    }
    return -1;
  }
};

// -- the number of threads --------------------------------------------------------------------------------------------

// The processors that a control group allows the process, rounded up, or kMostThreads.
int Quota() {
  std::string quota;
  double period = 0;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> quota >> period) {
    if (quota == "max" || period <= 0) return kMostThreads;
    return std::max(1, static_cast<int>(std::atof(quota.c_str()) / period + 0.99));
  }
  double limit = 0;
  std::ifstream first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), second("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (first >> limit && second >> period && limit > 0 && period > 0) {
    return std::max(1, static_cast<int>(limit / period + 0.99));
  }
  return kMostThreads;
}

// TVM_NUM_THREADS, else the cores that the process may run on. Hardware threads of one core count once.
int Threads() {
  if (const char* setting = std::getenv("TVM_NUM_THREADS"); setting != nullptr && *setting != 0) {
    return std::clamp(std::atoi(setting), 1, kMostThreads);
  }
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::string name = std::to_string(cpu), siblings;
    std::ifstream file("/sys/devices/system/cpu/cpu" + name + "/topology/thread_siblings_list");
    cores.insert(file >> siblings ? siblings : name);
  }
  return std::clamp(static_cast<int>(cores.size()), 1, Quota());
}

// -- the pool ---------------------------------------------------------------------------------------------------------

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
    if (here < 0 || IsRunning(caller) || sched_getaffinity(caller, sizeof before, &before) != 0 || !CPU_ISSET(here, &before)) return;
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
      region->share[i].word.store(uint64_t{region->generation.load()} << 32 | pieces[i] << 16, std::memory_order_release);
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

std::atomic<Pool*> the_pool{nullptr};
std::atomic_flag making = ATOMIC_FLAG_INIT;

int LaunchHere(Task task, void* data, int64_t extent) {
  Pool* pool = the_pool.load(std::memory_order_acquire);
  if (pool == nullptr) {
    while (making.test_and_set()) sched_yield();
    pool = the_pool.load();
    if (pool == nullptr) the_pool.store(pool = new Pool(Threads()));
    making.clear();
  }
  return pool->Launch(task, data, extent);
}

// -- one pool for a process -------------------------------------------------------------------------------------------

constexpr char kName[] = "tvm_stitch.parallel.launch.1";

using Launcher = int (*)(Task, void*, int64_t);
Launcher launcher = &LaunchHere;  // of the first library

int GiveLauncher(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = reinterpret_cast<int64_t>(&LaunchHere);
  return 0;
}

// Runs while the loader loads the library, which it does for one library at a time.
__attribute__((constructor)) void Register() {
  TVMFFIByteArray name{kName, sizeof kName - 1};
  void* function = nullptr;
  if (TVMFFIFunctionGetGlobal(&name, &function) == 0 && function != nullptr) {
    TVMFFIAny result{};
    if (TVMFFIFunctionCall(function, nullptr, 0, &result) == 0) launcher = reinterpret_cast<Launcher>(result.v_int64);
    TVMFFIObjectDecRef(function);
    return;
  }
  if (TVMFFIFunctionCreate(nullptr, &GiveLauncher, nullptr, &function) != 0) return;
  TVMFFIFunctionSetGlobal(&name, function, 0);
  TVMFFIObjectDecRef(function);
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&Register), &info) != 0) dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  pthread_atfork(nullptr, nullptr, [] {
    the_pool.store(nullptr);
    making.clear();
    thread_id = static_cast<pid_t>(syscall(SYS_gettid));
  });
}

thread_local int64_t announced = 0;

}  // namespace

// Called before a launch by the same thread. `extent` is the number of iterations of the region's loop. If it is 0, the
// region's tasks meet at barriers.
EXPORTED int tvm_stitch_parallel_extent_1(int64_t extent) {
  announced = extent;
  return 0;
}

// TVMBackendParallelLaunch. Compiled code passes 0 for `tasks`.
EXPORTED int tvm_stitch_parallel_launch_1(Task task, void* data, int tasks) {
  int64_t extent = announced;
  announced = 0;
  return launcher(task, data, tasks > 0 ? tasks : extent);
}

// TVMBackendParallelBarrier.
EXPORTED int tvm_stitch_parallel_barrier_1(int, Group* group) {
  auto* barrier = static_cast<Barrier*>(group->barrier);
  if (group->tasks == 1 || barrier->broken.load()) return 0;
  uint32_t phase = barrier->phase.value.load();
  if (barrier->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(group->tasks)) {
    barrier->arrived.store(0);
    barrier->phase.value.fetch_add(1);
    barrier->phase.Wake(kAll);
  } else {
    WaitUntil(&barrier->phase, kSpinBarrier, [&] { return barrier->phase.value.load() != phase || barrier->broken; });
  }
  return 0;
}
