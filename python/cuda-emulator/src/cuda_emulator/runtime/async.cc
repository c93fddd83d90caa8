// SPDX-License-Identifier: Apache-2.0
// Copies from device to shared memory in the background (cp.async). They may arrive at once, and at the latest when the
// thread waits for them: so they write when they begin, what nobody may read, and the data when they are waited for.
#include <algorithm>
#include <cstring>

#include "emulator.h"

extern "C" {
void emu_read(const void* address, unsigned bytes);
void emu_write(const void* address, unsigned bytes);
void* emu_from_shared(unsigned a);

void emu_copy_async(unsigned to, const void* from, unsigned bytes, unsigned read) {
  if (!emu::g_thread) return;
  void* const target = emu_from_shared(to);
  emu_write(target, bytes);
  memset(target, 0xff, bytes);
  if (read) emu_read(from, read);
  emu::g_thread->copies.push_back({target, from, bytes, read, emu::g_thread->copy_groups});
}

void emu_end_copy_group() {
  if (emu::g_thread) ++emu::g_thread->copy_groups;
}

static void arrive(uint32_t groups) {
  auto& copies = emu::g_thread->copies;
  auto waited_for = [&](const emu::AsyncCopy& copy) { return copy.group < groups; };
  for (const emu::AsyncCopy& copy : copies) {
    if (!waited_for(copy)) continue;
    emu_write(copy.to, copy.bytes);
    memset(copy.to, 0, copy.bytes);
    memcpy(copy.to, copy.from, copy.read);
  }
  copies.erase(std::remove_if(copies.begin(), copies.end(), waited_for), copies.end());
}

void emu_wait_for_copies() {
  if (emu::g_thread) arrive(UINT32_MAX);
}

void emu_wait_for_copy_groups(unsigned but) {
  if (emu::g_thread && emu::g_thread->copy_groups > but) arrive(emu::g_thread->copy_groups - but);
}
}
