// SPDX-License-Identifier: Apache-2.0
// Sums over what the blocks of a cluster have at the same place of their shared memory.
#ifndef TVM_STITCH_CLUSTER_SUMS
#define TVM_STITCH_CLUSTER_SUMS

namespace tvm_stitch {

// Adds up neighbouring floats of all blocks, in their order; all of the loads are on their way together.
template <int kBlocks, int kLanes>
__device__ __forceinline__ void add_up_of_cluster(const float* at, float* sums) {
  static_assert(kLanes == 1 || kLanes == 4, "a load has one float or four");
  const unsigned own = unsigned(__cvta_generic_to_shared(at));
  float parts[kBlocks][kLanes];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(block));
    float* const to = parts[block];
    if (kLanes == 4)
      asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(to[0]), "=f"(to[1 % kLanes]), "=f"(to[2 % kLanes]), "=f"(to[3 % kLanes]) : "r"(there));
    else
      asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(to[0]) : "r"(there));
  }
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    float sum = parts[0][lane];
#pragma unroll
    for (int block = 1; block < kBlocks; ++block) sum += parts[block][lane];
    sums[lane] = sum;
  }
}

}  // namespace tvm_stitch

#endif  // TVM_STITCH_CLUSTER_SUMS
