// SPDX-License-Identifier: Apache-2.0
// Copies from device to shared memory in the background.
#ifndef TVM_STITCH_COPIES
#define TVM_STITCH_COPIES

namespace tvm_stitch {

// 16 bytes, of which `bytes` are read and the others become 0.
__device__ __forceinline__ void copy_in_background(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               : : "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes) : "memory");
}

// 4 bytes, of which `bytes` are read and the others become 0.
__device__ __forceinline__ void copy_word_in_background(void* to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               : : "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes) : "memory");
}

// Until this thread's copies have arrived; those of others are there behind a barrier.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

__device__ __forceinline__ void end_copy_group() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Until all of this thread's groups of copies but the last one have arrived.
__device__ __forceinline__ void wait_for_copies_but_last() { asm volatile("cp.async.wait_group 1;" : : : "memory"); }

}  // namespace tvm_stitch

#endif  // TVM_STITCH_COPIES
