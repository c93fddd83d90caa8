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
    cpu_scan_as_sums: int = 128
    gpu_scan_as_sums: int = 512
    """The longest rows whose running sums are added up anew for each element. On a CPU adding 128 elements to each of
    128 takes about as long as 128 additions that wait for each other. On a GPU a scan takes several launches."""
    most_picks: int = 8
    cpu_picked_row: int = 1024
    """The most elements that are taken of a row by a reduction each, and the longest such row on a CPU. One core
    took 65 us for 8 of each of 512 rows of 128, and TVM's sort 611. It took 22 us for 5 of each of 16 rows of 1,000
    (TVM 26). It took 35 us for 8 of each of 4 rows of 4,096 (TVM 21). On a GPU, where TVM sorts in several kernels,
    rows may have any length. Nothing was measured there."""
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
