// SPDX-License-Identifier: Apache-2.0
// What a kernel calls: built-in variables, barriers, warp operations, shared memory.
#include <cstring>

#include "emulator.h"

using namespace emu;

namespace {

Slot& shared_slot(const Block& b, int id) { return g_shared_slots[b.resident * kSharedPerBlock + uint64_t(id)]; }

// The address is a multiple of `align` and of no higher power of two, so that a wider access than that is found out.
void* shared_array(int id, uint64_t bytes, unsigned itemsize, unsigned align, const char* name) {
  Block& b = *g_thread->block;
  if (uint64_t(id) >= kSharedPerBlock) {
    add_report(kUnsupported, g_thread, 0, nullptr, 0, nullptr, "more than %d shared arrays in a kernel",
               int(kSharedPerBlock));
    abort_launch();
  }
  Slot& s = shared_slot(b, id);
  uint32_t& ready = b.shared_ready[id / 32];
  if (ready >> (id % 32) & 1) return reinterpret_cast<void*>(s.start);
  ready |= 1u << (id % 32);
  s.start = g_shared_base + ((b.resident * kSharedPerBlock + uint64_t(id)) << kSharedShift) + kSharedMargin + align;
  s.size = bytes;
  s.lo = s.start;
  s.hi = s.start + bytes;
  s.floor = b.start;
  s.shared = true;
  s.output = false;
  s.resident = int32_t(b.resident);
  s.itemsize = itemsize;
  s.name = name;
  if (!s.cells || s.capacity < bytes) {
    if (!s.cells) s.granule = 2;
    reserve_cells(s, bytes);
  }
  memset(reinterpret_cast<void*>(s.start), g_launch.poison ? 0xff : 0, bytes);
  return reinterpret_cast<void*>(s.start);
}

uint64_t wait_at_warp(WarpOp op, int line, uint32_t mask, uint64_t value, int mode, int arg, int width) {
  Thread* t = g_thread;
  t->op = op;
  t->line = line;
  t->mask = mask;
  t->value = value;
  t->mode = mode;
  t->arg = arg;
  t->width = width;
  wait_here(kWaitWarp);
  return t->result;
}

struct uint3 {
  uint32_t x, y, z;
};

}  // namespace

extern "C" {

uint3 emu_thread_idx() {
  const Dim d = g_thread->index;
  return {d.x, d.y, d.z};
}
uint3 emu_block_idx() {
  const Dim d = g_thread->block->index;
  return {d.x, d.y, d.z};
}
uint3 emu_block_dim() { return {g_launch.block.x, g_launch.block.y, g_launch.block.z}; }
uint3 emu_grid_dim() { return {g_launch.grid.x, g_launch.grid.y, g_launch.grid.z}; }
uint3 emu_cluster_rank3() {
  const Dim b = g_thread->block->index, c = g_launch.cluster;
  return {b.x % c.x, b.y % c.y, b.z % c.z};
}
uint3 emu_cluster_dim() { return {g_launch.cluster.x, g_launch.cluster.y, g_launch.cluster.z}; }

void* emu_shared(int id, unsigned long bytes, unsigned itemsize, unsigned align, const char* name) {
  return shared_array(id, bytes, itemsize, align, name);
}
void* emu_dynamic_shared() { return shared_array(0, g_launch.dynamic_shared, 1, 1024, "dynamic shared memory"); }

int emu_block_barrier(int line, int op, int predicate) {
  Thread* t = g_thread;
  t->line = line;
  t->mode = op;
  t->arg = predicate;
  wait_here(kWaitBlock);
  return int(t->result);
}

void emu_grid_barrier(int line) {
  g_thread->line = line;
  if (!g_launch.cooperative) {
    add_report(kLaunch, g_thread, line, nullptr, 0, nullptr, "grid barrier in a launch that is not cooperative");
    abort_launch();
  }
  wait_here(kWaitGrid);
}

void emu_cluster_arrive(int line, int release) { cluster_arrive(*g_thread, release, line); }
void emu_cluster_wait(int line) { cluster_wait(*g_thread, line); }
void emu_wait_for_kernels_in_front() { g_thread->waited = true; }
void emu_fence() { cluster_fence(*g_thread); }

unsigned emu_active_mask(int line) { return unsigned(wait_at_warp(kActiveMaskOp, line, 0, 0, 0, 0, 32)); }
void emu_sync_warp(int line, unsigned mask) { wait_at_warp(kSyncWarpOp, line, mask, 0, 0, 0, 32); }
uint64_t emu_shuffle(int line, unsigned mask, uint64_t bits, int mode, int arg, int width) {
  return wait_at_warp(kShuffleOp, line, mask, bits, mode, arg, width);
}
uint64_t emu_warp_collective(int line, unsigned mask, uint64_t bits, int op) {
  return wait_at_warp(kCollectiveOp, line, mask, bits, op, 0, 32);
}

void emu_atomic_done() {}

void emu_unsupported(int line, const char* what) {
  add_report(kUnsupported, g_thread, line, nullptr, 0, nullptr, "%s", what);
  abort_launch();
}

void emu_trap(int line) {
  add_report(kCrash, g_thread, line, nullptr, 0, nullptr, "the kernel trapped");
  abort_launch();
}

// Shared memory as 32-bit addresses: rank + 1 of the block in its cluster (0: the own block), array, byte.
unsigned emu_to_shared(const void* p) {
  const uint64_t h = reinterpret_cast<uint64_t>(p) - g_shared_base;
  if (h >= kSharedSlots << kSharedShift) {
    add_report(kOutOfBounds, g_thread, 0, nullptr, 0, nullptr, "an address that is not in shared memory is taken as such");
    abort_launch();
  }
  return unsigned(h & ((kSharedPerBlock << kSharedShift) - 1));
}

unsigned emu_map_rank(unsigned a, unsigned rank) {
  if (rank >= g_launch.cluster_size) {
    add_report(kOutOfBounds, g_thread, 0, nullptr, 0, nullptr, "rank %u in a cluster of %u blocks", rank,
               g_launch.cluster_size);
    abort_launch();
  }
  return (a & 0x01ffffffu) | (rank + 1) << 25;
}

static uint64_t resident_base(unsigned rank_plus_one) {
  const Block& b = *g_thread->block;
  const uint64_t resident = rank_plus_one ? b.resident - b.rank + (rank_plus_one - 1) : b.resident;
  return g_shared_base + ((resident * kSharedPerBlock) << kSharedShift);
}

void* emu_from_shared(unsigned a) { return reinterpret_cast<void*>(resident_base(a >> 25) + (a & 0x01ffffffu)); }

void* emu_map_rank_generic(const void* p, unsigned rank) { return emu_from_shared(emu_map_rank(emu_to_shared(p), rank)); }

}  // extern "C"
