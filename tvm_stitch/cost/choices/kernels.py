# SPDX-License-Identifier: Apache-2.0
"""Constants of this project's CUDA kernels of convolutions and attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelChoices:
    """Constants of this project's CUDA kernels of convolutions and attention."""

    convolution_splits: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
    """Possible numbers of splits of a sum."""
    convolution_fewest_rounds: int = 2
    """Fewest steps of each slice in a split. With fewer, most of the time is spent waiting for the first copy."""
    convolution_filled: float = 1.34
    """Padding factor of the channels from which on steps run through the windows of channels. The factor compares the
    channels of a window position, padded to whole steps, to the channels. Windows of channels take more instructions
    for addresses."""
    convolution_wasted: float = 2.0
    """A tile that computes this many times the result is left to the library."""
    convolution_step_cycles: int = 1700
    """Cycles of a step that waits for its copies."""
    convolution_efficiency: tuple[tuple[int, int, int, float], ...] = ((64, 32, 4, 0.6),)
    """Share of a multiprocessor's multiply-adds that a tile reaches. Other tiles reach
    ``convolution_usual_efficiency``."""
    convolution_usual_efficiency: float = 0.65
    """The same of the other tiles."""
    convolution_block_cycles: int = 5000
    """Cycles of a block outside of its steps: the launch, the first copies, the write-back."""
    convolution_lanes: int = 128
    """Float32 multiply-adds of a multiprocessor per cycle. On devices with 64, all plans are equally slower."""
    convolution_cluster_cycles: int = 1500
    """Cycles in which the blocks of a cluster add up each other's splits."""
    convolution_apart_cycles: int = 3500
    """Cycles in which a grid, or a second kernel, starts to add up splits from memory, and ends."""
    convolution_bytes_per_cycle: int = 1500
    """Bytes of the splits' results per cycle. They are written and read again, mostly in the second-level cache."""
    depthwise_lanes: int = 4
    """Most neighbouring channels of a thread of a depthwise convolution. With 8, 17 sizes took up to 1.5 times as long
    on an NVIDIA H200."""
    depthwise_across: int = 4
    """Neighbouring positions of such a thread. With 8 it has so many sums that few threads are resident. Images of
    56 x 56 by windows of 7 x 7 took 59 us with 4, 82 with 2 and 91 with 8."""
    depthwise_narrow: int = 8
    """Most positions of a row that a thread has all. Images of 7 x 7 took 10.6 us with 4, and 7.9 with all."""
    depthwise_line_bytes: int = 128
    """Bytes of neighbouring channels that a block reads: a line of the cache."""
    depthwise_threads: int = 256
    """Most threads of a block."""
    depthwise_few_sums: int = 32
    """Most sums of a thread with which two blocks are to be resident, as all measured plans had it."""
    depthwise_threads_each: int = 128
    """Fewest threads for each multiprocessor. With fewer of them, a thread has half of the positions. One image of
    14 x 14 by 5 x 5, with 672 channels, took 7.4 us with 4 positions and 6.1 with 2."""
    depthwise_rows: tuple[int, ...] = (7, 8, 6, 5, 4)
    """Rows of a thread with channels first. The first of those that compute the fewest rows beyond an image is taken.
    Images of 56 x 56 by windows of 7 x 7 took 50 us with 7, 52 with 8, and 236 in cuDNN."""
    depthwise_rows_threads_each: int = 256
    """Fewest threads for each multiprocessor with channels first. With fewer, a thread has half of the rows. One image
    of 14 x 14 by 7 x 7, with 384 channels, took 6.8 us with 7 rows and 5.7 with 2."""
    depthwise_taps: int = 128
    """Most elements of a window, and of its reach along the axis of a thread's results: their loops are written out.
    Larger windows are gradients of weights."""
    packed_multiplications: int = 2**29
    """Fewest multiply-adds for which a computed weight is packed. Packing then takes next to no time in comparison."""
    split_loads_at_once: int = 16
    """Loads of a thread that are in flight together."""
    split_evaluations: int = 8
    """Most copies of an epilogue's code, for vectors that a thread loads together."""
    attention_fewest_queries: int = 16
    """Fewest queries. With fewer, most of a tile is empty, and a block for each head leaves most of a device idle."""
    attention_few_queries: int = 16
    """Most queries of heads that share keys, for the kernel that multiplies keys without tensor cores. Not measured."""
    attention_lanes_queries: int = 4
    """The same if tensor cores may multiply in their place. A block reads the keys once for so many queries."""
    attention_lanes_long_queries: int = 2
    """The same for many keys, or a symbolic number of them."""
    attention_long_keys: int = 2048
    """Keys that are many. On an H200 8 groups of 4 queries with heads of 64 took 3.9 us over 512 keys, and 4.4 us by
    tensor cores. Over 4,096 keys they took 8.0 and 6.9 us, over 32,768 keys 37.2 and 24.6."""
    attention_units_queries: int = 64
    """Most queries of heads that share keys, for the kernel that reads keys once for 16 or 32 of them. Not measured."""
    attention_few_keys: int = 64
    """Fewest keys of a block that shares those of a head with others: 16 threads read 4 keys each. Not measured."""
    attention_few_warps: int = 16
    """Most warps of a block of that kernel, if it has a multiprocessor alone. A block has no more than read its keys at
    once. An H200 took 5.5 us for 8 groups of 4 queries, with heads of 128 and 512 keys, by 4 warps. It took 4.4 us by 8
    warps, and 5.8 by 16. Over 4,096 keys it took 24.6, 15.7 and 12.6 us."""
    attention_few_units_warps: int = 8
    """The same on tensor cores, for heads of more than 64 elements and for more than 16 queries. The same for a
    symbolic number of keys. An H200 took 6.0 us for 8 groups of 32 queries over 512 keys by 4 warps, 5.5 by 8 and 9.6
    by 16. It took 10.6 us for 8 groups of 4 queries, with heads of 128 and 4,096 keys, by 8 warps, and 15.3 by 16."""
    attention_two_tiles_queries: int = 512
    """Fewest queries for which a warp has two tiles, which loads each key half as often. Fewer queries need more
    blocks."""
    attention_library_fewest_keys: int = 256
    """Fewest keys of attention that cuDNN may compute. Of fewer, this package's kernel is faster: for 128 keys it took
    17 us, and cuDNN 47 (H200, float16, 32 x 12 heads of 64)."""
    attention_library_fewest_symbolic_keys: int = 4096
    """The same of symbolic shapes. Nothing is measured for them, and cuDNN compiles a kernel for each. That takes 0.5
    s, and a layer of a decoder saves 0.25 ms for 4,096 keys (H200, float16, 32 heads of 128)."""
    attention_workspace_bytes: int = 1 << 20
    """Device memory that attention by cuDNN may use in addition to its operands. cuDNN 9.28 asks for 256 bytes on an
    H200."""
