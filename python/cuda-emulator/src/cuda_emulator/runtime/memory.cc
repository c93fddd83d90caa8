// SPDX-License-Identifier: Apache-2.0
// Memory of the emulated device: every array has a range of addresses of its own, so that an address names its array.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "emulator.h"

namespace emu {

uint64_t g_global_base = 0, g_shared_base = 0;
Slot* g_global_slots = nullptr;
Slot* g_shared_slots = nullptr;

namespace {
std::vector<uint32_t> g_free_slots;
constexpr uint64_t kPage = 4096;

uint64_t reserve(uint64_t bytes, uint64_t align, int protection) {
  void* p = mmap(nullptr, bytes + align, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return 0;
  return (reinterpret_cast<uint64_t>(p) + align - 1) / align * align;
}
}  // namespace

bool memory_init() {
  if (g_global_base) return true;
  g_global_base = reserve(kGlobalSlots << kGlobalShift, 1ull << 20, PROT_NONE);
  g_shared_base = reserve(kSharedSlots << kSharedShift, 1ull << 20, PROT_READ | PROT_WRITE);
  if (!g_global_base || !g_shared_base) {
    g_global_base = 0;
    return false;
  }
  g_global_slots = new Slot[kGlobalSlots];
  // Slots of shared memory are zero pages until a block uses them; all-zero bytes are a valid empty Slot for our use.
  g_shared_slots = static_cast<Slot*>(calloc(kSharedSlots, sizeof(Slot)));
  for (uint32_t i = kGlobalSlots; i-- > 0;) g_free_slots.push_back(i);
  return true;
}

void reserve_cells(Slot& s, uint64_t bytes) {
  if (s.capacity >= bytes && s.cells) return;
  if (s.cells) munmap(s.cells, ((s.capacity >> s.granule) + 1) * sizeof(Cell));
  void* p = mmap(nullptr, ((bytes >> s.granule) + 1) * sizeof(Cell), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  s.cells = p == MAP_FAILED ? nullptr : static_cast<Cell*>(p);
  s.capacity = bytes;
  if (!s.cells) abort();
}

// Makes the granules of a slot finer: each new cell starts as a copy of the one that covered it.
void set_granule(Slot& s, uint8_t granule) {
  if (granule >= s.granule) return;
  const uint64_t old_count = (s.capacity >> s.granule) + 1;
  Cell* old = s.cells;
  const unsigned factor = s.granule - granule;
  s.granule = granule;
  s.cells = nullptr;
  reserve_cells(s, s.capacity);
  if (!old) return;
  const uint64_t count = (s.capacity >> granule) + 1;
  for (uint64_t i = 0; i < count; ++i) s.cells[i] = old[i >> factor];
  munmap(old, old_count * sizeof(Cell));
}

static Slot* global_slot(uint64_t address) {
  const uint64_t i = (address - g_global_base) >> kGlobalShift;
  return address >= g_global_base && i < kGlobalSlots && g_global_slots[i].size ? &g_global_slots[i] : nullptr;
}

}  // namespace emu

using namespace emu;

extern "C" {

// An array of `bytes` bytes, elements of `itemsize` bytes, that nobody wrote; filled with `fill`. 0: no room.
uint64_t emu_alloc(uint64_t bytes, uint32_t itemsize, int fill) {
  if (!memory_init() || g_free_slots.empty()) return 0;
  const uint64_t room = bytes ? bytes : 1;
  if (room > (1ull << kGlobalShift) / 2) return 0;
  const uint32_t i = g_free_slots.back();
  const uint64_t start = g_global_base + (uint64_t(i) << kGlobalShift) + (1ull << kGlobalShift) / 4;
  const uint64_t end = (start + room + kPage - 1) / kPage * kPage;
  if (mprotect(reinterpret_cast<void*>(start - kGlobalMargin), end - start + 2 * kGlobalMargin, PROT_READ | PROT_WRITE))
    return 0;
  g_free_slots.pop_back();
  Slot& s = g_global_slots[i];
  s.start = start;
  s.size = room;
  s.lo = s.hi = 0;
  s.floor = 0;
  s.itemsize = itemsize;
  s.granule = itemsize >= 8 ? 3 : itemsize >= 4 ? 2 : itemsize == 2 ? 1 : 0;
  s.shared = s.output = false;
  s.cells = nullptr;
  s.capacity = 0;
  reserve_cells(s, room);
  memset(reinterpret_cast<void*>(start), fill, room);
  return start;
}

void emu_free(uint64_t address) {
  Slot* s = global_slot(address);
  if (!s) return;
  const uint64_t end = (s->start + s->size + kPage - 1) / kPage * kPage;
  munmap(s->cells, ((s->capacity >> s->granule) + 1) * sizeof(Cell));
  // A fresh mapping gives the pages back to the system and makes the range unreadable.
  mmap(reinterpret_cast<void*>(s->start - kGlobalMargin), end - s->start + 2 * kGlobalMargin, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  s->cells = nullptr;
  s->size = s->capacity = 0;
  s->lo = s->hi = 0;
  g_free_slots.push_back(static_cast<uint32_t>(s - g_global_slots));
}

int emu_owns(uint64_t address) { return g_global_base && global_slot(address) != nullptr; }

// Marks a range as written by the host (written != 0) or as never written.
void emu_mark(uint64_t address, uint64_t bytes, int written) {
  Slot* s = global_slot(address);
  if (!s || !bytes) return;
  const uint64_t first = (address - s->start) >> s->granule, last = (address - s->start + bytes - 1) >> s->granule;
  for (uint64_t i = first; i <= last; ++i) {
    s->cells[i] = Cell{};
    s->cells[i].write.stamp = written ? kHostStamp : 0;
  }
}

// Counts the bytes of a range that nobody wrote; *first is the offset of the first of them.
uint64_t emu_count_unwritten(uint64_t address, uint64_t bytes, int64_t* first) {
  Slot* s = global_slot(address);
  *first = -1;
  if (!s) return 0;
  uint64_t missing = 0;
  const uint64_t size = 1ull << s->granule;
  for (uint64_t at = 0; at < bytes; at += size) {
    if (s->cells[(address - s->start + at) >> s->granule].write.stamp) continue;
    if (*first < 0) *first = static_cast<int64_t>(at);
    missing += bytes - at < size ? bytes - at : size;
  }
  return missing;
}

}  // extern "C"
