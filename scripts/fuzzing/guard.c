/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors between pages that nobody may touch, to be preloaded: a kernel that reads or writes beyond an array of its
 * own ends in a segmentation fault, and one that writes into the gap of alignment ends the process when the array is
 * freed. TVM takes tensors' memory from posix_memalign; everybody else has the usual allocator, since there are ways to
 * free or resize memory that are not seen here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, SLOTS = 1 << 16, PATTERN = 0x5a };

typedef struct {
  char *data; /* NULL: never used; GONE: freed */
  size_t size;
  char *base; /* the page before the array's first */
  size_t mapped;
} Slot;

static char gone;
#define GONE (&gone)
static Slot slots[SLOTS];
static size_t live;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t first_slot(const void *data) { return ((size_t)data >> 6) % SLOTS; }

static int is_tvm(void *caller) {
  Dl_info info;
  return dladdr(caller, &info) != 0 && info.dli_fname != NULL && strstr(info.dli_fname, "libtvm") != NULL;
}

int posix_memalign(void **out, size_t alignment, size_t size) {
  static int (*usual)(void **, size_t, size_t);
  if (usual == NULL) usual = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  if (!is_tvm(__builtin_return_address(0))) return usual(out, alignment, size);
  size_t span = (size + alignment - 1) / alignment * alignment;
  size_t inside = (span + PAGE) & ~(size_t)(PAGE - 1); /* at least a page */
  if (live >= SLOTS / 2) return ENOMEM;
  char *base = mmap(NULL, inside + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return ENOMEM;
  if (mprotect(base + PAGE, inside, PROT_READ | PROT_WRITE) != 0) {
    munmap(base, inside + 2 * PAGE);
    return ENOMEM;
  }
  memset(base + PAGE, PATTERN, inside); /* what no kernel writes shows */
  char *data = base + PAGE + inside - span;
  pthread_mutex_lock(&lock);
  size_t at = first_slot(data);
  while (slots[at].data != NULL && slots[at].data != GONE) at = (at + 1) % SLOTS;
  slots[at] = (Slot){data, size, base, inside + 2 * PAGE};
  ++live;
  pthread_mutex_unlock(&lock);
  *out = data;
  return 0;
}

static void check(const Slot *slot) {
  const char *end = slot->base + slot->mapped - PAGE;
  for (const char *c = slot->base + PAGE; c < end; ++c) {
    if (c == slot->data) c += slot->size;
    if (c < end && *c != PATTERN) {
      fprintf(stderr, "a kernel wrote byte %ld of an array of %zu bytes\n", (long)(c - slot->data), slot->size);
      abort();
    }
  }
}

void free(void *data) {
  static void (*usual)(void *);
  if (usual == NULL) usual = (void (*)(void *))dlsym(RTLD_NEXT, "free");
  if (data == NULL) return;
  Slot found = {NULL, 0, NULL, 0};
  if (live != 0 && (size_t)data % 64 == 0) {
    pthread_mutex_lock(&lock);
    for (size_t at = first_slot(data), n = 0; slots[at].data != NULL && n < SLOTS; at = (at + 1) % SLOTS, ++n) {
      if (slots[at].data == data) {
        found = slots[at];
        slots[at].data = GONE;
        --live;
        break;
      }
    }
    pthread_mutex_unlock(&lock);
  }
  if (found.data == NULL) {
    usual(data);
    return;
  }
  check(&found);
  munmap(found.base, found.mapped);
}
