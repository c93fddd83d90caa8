# SPDX-License-Identifier: Apache-2.0
"""Limits of fusion: how many operators join, and how long the search takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FusionChoices:
    """Limits of fusion: how many operators join, and how long the search takes."""

    # -- fusion: which operators join ----------------------------------------------------------------------------------
    small_seconds: float = 10e-6
    """Reductions that take less join a grid-wide scope without a look at each: they cannot lose much."""
    full_nodes: int = 100
    """Nodes of a scope that is about as large as it can get: planning it takes long."""
    full_refusals: int = 6
    """Refusals for lack of a plan from which on such a scope is not tried again."""
    nodes_at_once: int = 32
    """Nodes that are joined before the resulting scopes are planned. Fewer nodes are joined if that fails."""
    open_bins: int = 8
    """Most scopes that a scope without a path to them is tried with. The bound keeps the work linear in the size of
    the graph."""
    inlined_operations: int = 2048
    """The most operations of a value that the next kernel on a GPU may inline. TVM's schedules write each value before
    it at each read."""
    short_sum: int = 4
    short_window: int = 9
    """Most elements of a sum, and of a pool's window, that are added as an element-wise operator does."""
    neighbours: int = 8
    """Neighbouring results that must read neighbouring elements then: those of a vector of a half type."""
    gpu_short_product: int = 8
    cpu_short_product: int = 6
    """Most rows and columns of a matrix by which vectors are multiplied by an element-wise operator. On an H200 CaiT in
    float16 for 32 images took 13.1 ms in the place of 42.4. The other figures are those of one core of an AMD EPYC.
    Mixing 6 heads of 577 x 577 scores around a softmax took 26.6 ms in the place of 42.1. A colour transform of 1,024 x
    1,024 pixels took 1.0 ms in the place of 2.8. With 8 heads of 256 x 256 scores it took 5.8 ms in the place of 5.5.
    CPUs do so only if the matrix is the right operand: 3 x 3 on the left took 155 us in the place of 89."""
    short_product_vectors: int = 4096
    """Fewest such vectors. Products of fewer rows have kernels of their own."""
    cpu_scan_as_sums: int = 128
    gpu_scan_as_sums: int = 512
    """The longest rows whose running sums are added up anew for each element. On a CPU adding 128 elements to each of
    128 takes about as long as 128 additions that wait for each other. On a GPU a scan takes several launches."""
    most_picks: int = 8
    cpu_picked_row: int = 1024
    gpu_picked_row: int = 2048
    """The most elements that are taken of a row by a reduction each, and the longest such row on a CPU and by CUDA. One
    core took 65 us for 8 of each of 512 rows of 128, and TVM's sort 611. It took 22 us for 5 of each of 16 rows of
    1,000 (TVM 26). It took 35 us for 8 of each of 4 rows of 4,096 (TVM 21). On an H200 5 of each of 4,096
    rows of 1,000 took 31 us by reductions. A kernel that selects took 57 us. For 8 of each of 64 rows of 32,000 it
    took 8.8 us, and reductions took 51.8."""
    largest_filled_weight: int = 1 << 29
    """Bytes of the largest weight of one value that becomes a constant: VGG's largest is 411 MB."""
    largest_table: int = 1 << 22
    """Bytes of the largest mask or table that is computed when a model is compiled: a causal mask of 1,024 tokens in
    float32. A larger table would replace a library's computation, and is read from memory. Nothing was measured
    beyond it."""
    epilogue_nodes: int = 48
    """Element-wise nodes that the epilogue of a matrix product or convolution may have."""
    epilogue_lanes: int = 4
    """Neighbouring positions for which a thread of this project's CUDA convolution evaluates an epilogue at once: 16
    bytes of float32."""
    cpu_operators: int = 256
    cpu_arguments: int = 32
    """The most operators and arguments of a stitch op on a CPU: LLVM's time grows faster than the function."""
    cpu_operators_with_reduces: int = 64
    """Most operators of a stitch op with reductions on a CPU. LLVM's time grows with the product of operators and
    passes. It compiled 80 means of one row in 66 s as one function, and in 1 s as two."""
