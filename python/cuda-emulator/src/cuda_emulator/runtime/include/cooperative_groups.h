// SPDX-License-Identifier: Apache-2.0
// The part of cooperative groups that is emulated: block, grid and cluster barriers, ranks, distributed shared memory.
#pragma once
namespace cooperative_groups {
namespace emu_detail {
EMU_VALUE unsigned linear(uint3 i, uint3 d) { return i.x + d.x * (i.y + d.y * i.z); }
}  // namespace emu_detail
struct grid_group {
  EMU_NOSAN void sync(int line = __builtin_LINE()) const { emu_grid_barrier(line); }
  EMU_NOSAN bool is_valid() const { return true; }
  EMU_NOSAN unsigned long long size() const {
    const uint3 g = emu_grid_dim(), b = emu_block_dim();
    return 1ull * g.x * g.y * g.z * b.x * b.y * b.z;
  }
};
struct thread_block {
  EMU_NOSAN void sync(int line = __builtin_LINE()) const { emu_block_barrier(line, 0, 0); }
  EMU_NOSAN unsigned thread_rank() const { return emu_detail::linear(emu_thread_idx(), emu_block_dim()); }
  EMU_NOSAN unsigned size() const {
    const uint3 b = emu_block_dim();
    return b.x * b.y * b.z;
  }
};
struct cluster_group {
  EMU_NOSAN void sync(int line = __builtin_LINE()) const {
    barrier_arrive(line);
    barrier_wait(line);
  }
  EMU_NOSAN void barrier_arrive(int line = __builtin_LINE()) const { emu_cluster_arrive(line, 1); }
  EMU_NOSAN void barrier_wait(int line = __builtin_LINE()) const { emu_cluster_wait(line); }
  EMU_NOSAN unsigned block_rank() const { return emu_detail::linear(emu_cluster_rank3(), emu_cluster_dim()); }
  EMU_NOSAN unsigned num_blocks() const {
    const uint3 c = emu_cluster_dim();
    return c.x * c.y * c.z;
  }
  template <class T>
  EMU_NOSAN T* map_shared_rank(T* p, unsigned rank) const {
    return static_cast<T*>(emu_map_rank_generic(p, rank));
  }
};
EMU_VALUE grid_group this_grid() { return {}; }
EMU_VALUE thread_block this_thread_block() { return {}; }
EMU_VALUE cluster_group this_cluster() { return {}; }
}  // namespace cooperative_groups
