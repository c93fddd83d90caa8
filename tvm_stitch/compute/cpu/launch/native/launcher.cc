// SPDX-License-Identifier: Apache-2.0
// The launcher of parallel regions. Compiled CPU code calls it in the place of TVM's thread pool.
//
// TVM's pool gives each thread an equal share of a region, and the caller waits for all of them. If another program, or
// another library's spinning threads, keep a core busy, the caller waits for a thread that is not running. Here a
// region is divided into more pieces than threads. Each thread first takes the pieces of its own share, in order, then
// those left in other shares, from their ends. The caller takes every piece that nobody else takes. So it only waits
// for pieces that run.
//
// - Regions that meet at barriers need their threads at the same time. Threads that arrive soon form a group, and the
//   region is divided among these.
// - Threads without work spin for some time, then sleep. So do a caller that waits for the last pieces, and barriers.
// - Several host threads may launch at once. Worker threads join only while fewer threads are running than the pool
//   has. A region inside of a piece runs serially.
// - All models of a process share the pool of the first one, by a function in TVM's registry. That library stays
//   loaded.
// - After a fork, the child makes a new pool for its first region.
//
// Names end in the version of the interface, which changes with its types.
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "pool.h"
#include "threads.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using namespace tvm_stitch::parallel;

// -- one pool for a process -------------------------------------------------------------------------------------------

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
  if (dladdr(reinterpret_cast<void*>(&Register), &info) != 0) {
    dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
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
