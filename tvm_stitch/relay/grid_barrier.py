# SPDX-License-Identifier: Apache-2.0
"""The device function behind ``tvm_stitch.codegen.gpu.grid_barrier`` for kernels with plain launches.

Each key (the address of a workspace) has an entry in a table in device memory, as long as the module is loaded. The
table is zero when a module is loaded, and needs no other initialisation. An entry counts the blocks that have
arrived, and the barriers that were passed. The last block to arrive resets the count, and then releases the others
by counting the barrier. So every count is zero between launches, and between the barriers of a launch. The size of
the next grid does not matter. The number of barriers may wrap around, because it is only compared with itself.

Two simultaneous launches have different workspaces, and hence different entries. A workspace belongs to the host
thread that runs a function until its stream is done with it. The same holds for values that a kernel leaves in
scratch.
"""

from __future__ import annotations

from ..codegen.gpu.grid_barrier import GRID_BARRIER

ENTRIES = 4096
"""Most keys of a module: addresses of workspaces, which TVM's pools hand out repeatedly."""

INSTEAD = "CUDA_EMULATOR_GRID_BARRIER"
"""A macro that replaces the function if it is defined: an emulator's barrier."""

FUNCTION = f"""
#ifdef {INSTEAD}
#define {GRID_BARRIER}(key) {INSTEAD}
#else
struct tvm_stitch_barrier_entry {{
  unsigned long long key;  // 0: free
  unsigned arrived, passed;
}};
__device__ tvm_stitch_barrier_entry tvm_stitch_barrier_entries[{ENTRIES}];

static __device__ __noinline__ tvm_stitch_barrier_entry* tvm_stitch_barrier_entry_of(unsigned long long key) {{
  unsigned at = (unsigned)((key >> 8) * 2654435761ull >> 7) % {ENTRIES}u;
  for (unsigned tried = 0; tried < {ENTRIES}u; ++tried, at = (at + 1u) % {ENTRIES}u) {{
    unsigned long long* own = &tvm_stitch_barrier_entries[at].key;
    unsigned long long found = *(volatile unsigned long long*)own;
    if (!found) found = atomicCAS(own, 0ull, key);
    if (!found || found == key) return tvm_stitch_barrier_entries + at;  // entries are never given up
  }}
  __trap();
  return tvm_stitch_barrier_entries;
}}

// All threads of the grid wait for each other; what they wrote before is seen by all after.
static __device__ __forceinline__ void {GRID_BARRIER}(const void* key) {{
  __syncthreads();
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {{
    tvm_stitch_barrier_entry* entry = tvm_stitch_barrier_entry_of((unsigned long long)key);
    volatile unsigned* passed = &entry->passed;
    const unsigned before = *passed;  // before arriving: from then on it may change
    __threadfence();
    if (atomicAdd(&entry->arrived, 1u) == gridDim.x * gridDim.y * gridDim.z - 1u) {{
      atomicExch(&entry->arrived, 0u);
      __threadfence();
      atomicAdd(&entry->passed, 1u);
    }} else {{
      while (*passed == before) {{
      }}
    }}
    __threadfence();
  }}
  __syncthreads();
}}
#endif
"""
