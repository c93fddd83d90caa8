// SPDX-License-Identifier: Apache-2.0
// What the parts of the emulator's runtime share: memory slots with shadow cells, threads, blocks, reports.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
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

enum Level : uint8_t { kThread = 0, kWarp = 1, kBlock = 2, kCluster = 3, kGrid = 4 };

// Who touched a granule, as exactly as later checks need it: one thread, several lanes of one warp, several warps of one
// block, several blocks of one cluster, several clusters. `who` is block * 1024 + thread of one of them.
struct Access {
  uint32_t who;
  Stamp stamp;
  uint32_t lanes;
};

struct Cell {
  Access write;
  Access read;
  uint8_t write_level, read_level, write_atomic, pad;
  uint32_t pad2;
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
enum State : uint8_t { kNew, kReady, kWaitWarp, kWaitBlock, kWaitCluster, kWaitGrid, kExited };
enum WarpOp : uint8_t { kShuffleOp, kSyncWarpOp, kCollectiveOp, kActiveMaskOp, kVolatileOp };

struct Dim {
  uint32_t x, y, z;
};

struct Block;

struct Thread {
  void* sp = nullptr;
  char* stack = nullptr;
  Block* block = nullptr;
  uint32_t who = 0;  // block * 1024 + thread
  Stamp stamp = 0;   // of its last synchronisation
  uint8_t lane = 0;
  State state = kNew;
  WarpOp op = kShuffleOp;
  bool cluster_arrived = false;
  Dim index{};
  // the operation it waits at
  int32_t line = 0;
  uint32_t mask = 0;
  int32_t mode = 0, arg = 0, width = 32;
  uint64_t site = 0;
  uint64_t value = 0;
  uint64_t result = 0;
  Stamp known[32] = {};  // what it knows of the lanes of its warp: their accesses before these stamps
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
  Stamp visited = 0;     // of the last access of its shared memory by another block of the cluster
  uint32_t visitor = 0;  // the thread that made it
  std::vector<Thread> threads;
  uint32_t shared_ready[kSharedPerBlock / 32] = {};
};

struct LaunchState {
  bool active = false, cooperative = false, aborted = false;
  Dim grid{}, block{}, cluster{};
  uint32_t cluster_size = 1, threads = 0;
  Stamp start = 0, grid_stamp = 0;
  std::vector<Stamp> cluster_stamps;  // by cluster index
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

// warp.cc
bool resolve_warp(Block& b, uint32_t first);  // of the warp that starts at thread `first`; false: no lane waits for it
void volatile_rendezvous(uint64_t site);

}  // namespace emu
