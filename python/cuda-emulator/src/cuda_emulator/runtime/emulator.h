// SPDX-License-Identifier: Apache-2.0
// What the parts of the emulator's runtime share: memory slots with shadow cells, threads, blocks, reports.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace emu {

// ---- reports -------------------------------------------------------------------------------------------------------
enum ReportKind : int32_t {
  kOutOfBounds = 0,
  kUninitialized = 1,
  kRace = 2,
  kDoubleWrite = 3,
  kMisaligned = 4,
  kDivergentBarrier = 5,
  kDeadlock = 6,
  kShuffle = 7,
  kUnsupported = 8,
  kCrash = 9,
  kTimeout = 10,
  kLaunch = 11,
};

struct ReportRecord {  // mirrored by reports.py
  int32_t kind;
  int32_t line;        // of the prepared source, 0 if not known
  int64_t offset;      // in elements of the array, -1 if there is no array
  uint32_t block[3];
  uint32_t thread[3];
  uint32_t other_block[3];
  uint32_t other_thread[3];
  int32_t has_other;
  int32_t count;       // how often this was seen in one launch
  char array[64];
  char message[232];
};

// ---- shadow memory ---------------------------------------------------------------------------------------------------
// A time stamp is a number of events (barriers, warp synchronisations, block starts), counted over the whole process.
using Stamp = uint32_t;
constexpr Stamp kHostStamp = 1;  // memory that the host wrote; 0 stands for never

// kAsync: a store on its way, which an mbarrier's phase completes; `lanes` is the phase's number.
enum Level : uint8_t { kThread = 0, kWarp = 1, kBlock = 2, kCluster = 3, kGrid = 4, kAsync = 5 };

// Who touched a granule, as exactly as later checks need it: one thread, several lanes of one warp, several warps of one
// block, several blocks of one cluster, several clusters. `who` is block * 1024 + thread of one of them.
struct Access {
  uint32_t who;
  Stamp stamp;
  uint32_t lanes;
  uint32_t phase;  // of the thread's arrivals at cluster barriers (see Thread)
};

struct Cell {
  Access write;
  Access read;
  uint8_t write_level, read_level, write_atomic, pad;
};

struct Slot {              // one array: global memory, or a shared array of a resident block
  uint64_t start = 0;      // address of the first byte
  uint64_t size = 0;       // bytes that may be addressed
  uint64_t lo = 0, hi = 0; // bounds that hold in the running launch
  Cell* cells = nullptr;
  uint64_t capacity = 0;   // bytes that `cells` has room for
  Stamp floor = 0;         // older stamps do not exist (shared memory: the start of the block)
  uint8_t granule = 2;     // log2 of the bytes of a granule
  bool shared = false, output = false;
  uint32_t itemsize = 4;
  int32_t resident = -1;   // owner of a shared array
  const char* name = "";
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // arguments of the launch in this slot, when more than one
  std::string name_storage;
};

constexpr uint64_t kGlobalShift = 33;  // 8 GiB of addresses for each global array
constexpr uint64_t kGlobalSlots = 2048;
constexpr uint64_t kSharedShift = 19;  // 512 KiB of addresses for each shared array
constexpr uint64_t kSharedPerBlock = 64;
constexpr uint64_t kMaxResident = 4096;
constexpr uint64_t kSharedSlots = kSharedPerBlock * kMaxResident;
constexpr uint64_t kSharedMargin = 128 << 10;
constexpr uint64_t kGlobalMargin = 64 << 10;  // readable bytes on both sides of a global array

extern uint64_t g_global_base, g_shared_base;
extern Slot* g_global_slots;
extern Slot* g_shared_slots;

bool memory_init();
void set_granule(Slot& s, uint8_t granule);
void reserve_cells(Slot& s, uint64_t bytes);

// ---- threads and blocks ----------------------------------------------------------------------------------------------
enum State : uint8_t { kNew, kReady, kWaitWarp, kWaitBlock, kWaitCluster, kWaitMbarrier, kWaitGrid, kExited };
enum WarpOp : uint8_t { kShuffleOp, kSyncWarpOp, kCollectiveOp, kActiveMaskOp, kVolatileOp };

struct Dim {
  uint32_t x, y, z;
};

struct Block;

// Which accesses a completed cluster barrier orders before what follows the wait: those of phases before `phase`, and
// those before the synchronisation of stamp `stamp`, which a thread of their block or warp saw before it arrived.
struct Released {
  uint32_t phase = 0;
  Stamp stamp = 0;
  bool covers(const Access& a) const { return a.phase < phase || a.stamp < stamp; }
};

// A copy to shared memory that runs beside its thread.
struct AsyncCopy {
  void* to;
  const void* from;
  uint32_t bytes, read;
  uint32_t group;  // of its thread's groups that it is in
};

// A store to shared memory that runs beside its thread.
struct AsyncStore {
  void* to;
  uint64_t bits;
  uint32_t bytes;
};

// What the stores of an mbarrier's phase release to those who wait for it: what their threads did, and knew of their warps
// and blocks, before. What they know by other mbarriers are the phases that they waited for, and not what those released.
struct Message {
  std::vector<Stamp> threads;     // of the cluster: their accesses before these stamps
  std::vector<Stamp> blocks;      // of the cluster: the accesses of all of their threads before these stamps
  std::vector<uint32_t> awaited;  // phases of mbarriers
};

// A barrier in shared memory: a phase is complete once `count` threads have arrived and the bytes they expect are there.
struct Mbarrier {
  const void* at;
  uint32_t count, arrivals;  // of a phase; those that it still waits for
  int64_t bytes;             // the same of bytes: below zero where stores were quicker than who expects them
  uint32_t completed;        // phases
  uint32_t id;               // of the running phase, alone in the process
  uint32_t ids[2];           // of the last two that are complete
  uint32_t who;              // made it
  uint32_t sent, awaited;    // phases up to the last that stores came for, and up to the last that was waited for
  uint32_t fenced;           // cluster barriers that it had arrived at when it told the cluster of that by a fence
  std::vector<AsyncStore> stores;
  std::shared_ptr<Message> message;        // of the running phase
  std::shared_ptr<const Message> last[2];  // those of the last two that are complete
};

constexpr size_t kMessages = 8;  // that a thread remembers: to forget one may show a race that is none

struct Thread {
  void* sp = nullptr;
  char* stack = nullptr;
  Block* block = nullptr;
  uint32_t who = 0;  // block * 1024 + thread
  Stamp stamp = 0;   // of its last synchronisation
  uint8_t lane = 0;
  State state = kNew;
  WarpOp op = kShuffleOp;
  bool waited = false;  // for the kernels in front of a dependent launch
  Dim index{};
  // the operation it waits at
  int32_t line = 0;
  uint32_t mask = 0;
  int32_t mode = 0, arg = 0, width = 32;
  uint64_t site = 0;
  uint64_t value = 0;
  uint64_t result = 0;
  Stamp known[32] = {};  // what it knows of the lanes of its warp: their accesses before these stamps
  // Cluster barriers. An arrival ends a phase, and a fence a part of one: arrivals << 16 | fences since the last of them.
  uint32_t phase = 0;
  uint32_t arrivals = 0, waits = 0;
  uint32_t acquired = 0;  // as many barriers of its cluster are behind it, or behind a thread that it has met since
  Released released[2];   // at the last barrier that completed, and at the one before
  Released pending;       // at the next one
  // What it knew at its last fence, which is all that a relaxed arrival releases.
  uint32_t fenced_phase = 0;
  Stamp fenced_block = 0;
  Stamp fenced_known[32] = {};
  std::vector<AsyncCopy> copies;  // that it has not waited for
  uint32_t copy_groups = 0;       // that are complete: what comes is in the next one
  std::vector<uint32_t> awaited;  // phases of mbarriers that it waited for
  std::deque<std::shared_ptr<const Message>> messages;  // of the last of them
};

struct Block {
  uint32_t linear = 0;
  Dim index{};
  uint32_t resident = 0;
  uint32_t cluster = 0;  // index of its cluster
  uint32_t rank = 0;     // in its cluster
  Stamp stamp = 0;       // of its last barrier
  Stamp start = 0;
  uint32_t live = 0;
  uint32_t completed = 0;  // cluster barriers
  Stamp opened = 0;        // when the last of them did
  Released released[2];    // of all of its threads: at the last cluster barrier that completed, and at the one before
  Released pending;
  Access visits{};  // accesses of its shared memory by other blocks of the cluster, summed up as in a cell
  uint8_t visits_level = 0;
  std::vector<Mbarrier> mbarriers;
  std::vector<uint32_t> awaited;  // phases of mbarriers that all of its threads know of: since a barrier
  // Of 8 bytes of its shared memory, once it has an mbarrier: the last read of each of its threads.
  std::unordered_map<uint64_t, std::vector<Stamp>> readers;
  std::vector<uint32_t> told;     // those of which its threads tell the cluster at the next barrier
  std::vector<Thread> threads;
  uint32_t shared_ready[kSharedPerBlock / 32] = {};
};

struct LaunchState {
  bool active = false, cooperative = false, aborted = false;
  bool dependent = false;  // begins while the kernel in front ends
  Dim grid{}, block{}, cluster{};
  uint32_t cluster_size = 1, threads = 0;
  Stamp start = 0, grid_stamp = 0;
  std::vector<Block*> residents;
  uint64_t dynamic_shared = 0;
  int64_t budget = 0;
  bool strict_rewrite = false, volatile_sync = true, strict_shuffle = false, poison = true;
};

extern Thread* g_thread;  // the running CUDA thread, null on the host
extern LaunchState g_launch;
extern Stamp g_event;

Stamp next_event();
Dim thread_of(uint32_t who);
Dim block_of(uint32_t who);
void add_report(ReportKind kind, const Thread* t, int line, const Slot* slot, int64_t byte_offset, const uint32_t* other,
                const char* format, ...) __attribute__((format(printf, 7, 8)));
void clear_reports();
// fibers.cc
void begin_run(void* entry, void** args, double seconds);
void end_run();
void resume(Thread& t);       // runs a thread until it waits or ends
void drop_stacks(Block& b);
void block_ended(const Block& b);  // called on the fiber of its last thread (shadow.cc)
[[noreturn]] void abort_launch();  // called on a fiber: never returns to it
void wait_here(State state);       // called on a fiber: runs others until this thread may go on

// cluster.cc
void cluster_arrive(Thread& t, bool release, int line);
void cluster_wait(Thread& t, int line);  // called on a fiber
void cluster_fence(Thread& t);
void complete_cluster_barrier(Block* const* blocks, uint32_t count);
uint32_t cluster_of(uint32_t who);
bool thread_released(const Block& b, uint32_t thread, const Access& a, const Thread* to);
bool cluster_ordered(const Access& a, uint8_t level, const Thread* t);  // by cluster barriers alone

// mbarrier.cc
bool awaited(const Thread& t, uint32_t id);
// What messages tell a thread: a phase, by a thread that waited for it; reads of a place, by all threads that read it.
bool told_of_phase(const Thread& t, uint32_t id);
bool told_of_reads(const Thread& t, const Block& owner, uint64_t address);
bool resolve_mbarriers(Block& b);          // lets threads go on whose phase is complete
void mbarriers_ended(const Block& b);      // called on the fiber of its last thread
// shadow.cc
Block* block_of_shared(const void* at);    // of the running thread's cluster; null for other memory
// Checks an access of shared memory by a store that is on its way, or of its barrier; false: the memory is not there yet.
bool async_access_begins(void* at, unsigned bytes, bool write, uint32_t id);

// warp.cc
bool resolve_warp(Block& b, uint32_t first);  // of the warp that starts at thread `first`; false: no lane waits for it
void volatile_rendezvous(uint64_t site);

}  // namespace emu
