# SPDX-License-Identifier: Apache-2.0
"""Constants of the CPU templates: tasks, tiles and copies of products, convolutions and attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProductChoices:
    """Constants of the CPU templates: tasks, tiles and copies of products, convolutions and attention."""

    product_task_rows: int = 64
    """Rows of a parallel task: so many reuse a panel of the right side while it is in the second-level cache."""
    product_task_panels: int = 4
    """Panels of columns of a parallel task."""
    least_tasks: int = 32
    """Number of tasks of attention and depthwise convolutions, if there is enough work."""
    assumed_cores: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 24)
    """Numbers of cores to keep busy if the target has no ``num-cores``. Each core gets as many neighbouring tasks as
    the others, or one more."""
    copied_panel_elements: int = 1 << 16
    """Elements of a panel that is copied: a quarter of a second-level cache of 1 MiB."""
    cached_elements: int = 1 << 18
    """Elements that stay in a second-level cache of 2 MiB, or nearly so in one of 1 MiB, while others pass through."""
    least_tiles_of_copy: int = 2
    """Tiles of rows that a panel is copied for."""
    short_reduction: int = 128
    """Longest reduction for which panels are copied. The additions that end a sum along the reduction cost more of a
    short one."""
    dot_columns: int = 4
    """Columns of a tile whose sums run along the reduction."""
    group_dot_columns: int = 6
    """The same if an instruction multiplies pairs of bfloat16. One core of a Zen 4 multiplied 8 rows by 4,096 x 4,096
    weights. Tiles of 4 x 6 sums took 1.8 ms. Those of 4 x 4, 6 x 4 and 8 x 3 took 2.1 to 2.6 ms."""
    group_dot_panel: int = 24
    """Columns of a panel of such tiles, which are prefetched while the preceding panel is multiplied."""
    evicting_bytes: int = 2048
    """Bytes of which a row's size is a multiple if a copy of the rows pays there. Rows that lie so far apart share few
    sets of the first-level cache. On the same core, 16 rows of 4,096 elements took 2.7 ms copied, and 3.6 in place."""
    panel_fewest_rows_along: int = 256
    """Fewest rows for which each task packs the right side for an instruction that multiplies pairs of bfloat16, if the
    reduction is contiguous in memory. One core of a Zen 4 multiplied 512 rows by 4,096 x 4,096 at 213 GFLOP/s packed,
    and at 192 as it lies. For 128 rows it was 204 and 201."""
    panel_short_reduction: int = 256
    panel_fewest_rows_of_short: int = 16
    """The longest reduction for which fewer rows suffice, and their number. There, 16 rows by 2,048 columns of 128 and
    256 elements took 55 and 106 us packed, and 85 and 111 as they lie. With 512 elements they took 279 and 174."""
    panel_fewest_rows: int = 32
    """The same if the reduction is not contiguous. There, 32 rows by 768 x 3,072 took 0.95 ms, and 1.6 without the
    instruction. Weights of 4,096 x 4,096 took 12.2 and 12.5 ms, since they are read across memory."""
    panel_task_rows: int = 256
    """The same as ``product_task_rows`` if each task packs the right side. One core of a Zen 4 multiplied 512 rows by
    4,096 x 4,096. It took 87 ms with tasks of 64 rows, and 81 with 256."""
    panel_cost: int = 12
    """Cost for a task of packing a step of a panel, in multiplications of vectors. It follows from the times above."""
    serial_multiplications: int = 1 << 16
    """Multiplications up to which one thread is faster than a parallel region, which costs some microseconds."""
    matrix_tiles_fewest_rows: int = 4
    """Fewest rows of a product of bfloat16 that AMX computes. One core of an Emerald Rapids Xeon multiplied by
    768 x 3072 weights. AMX takes 218 us for 4 rows, and AVX512-BF16 276. They take 220 and 207 us for 2 rows."""
    matrix_tiles_fewest_rows_of_bytes: int = 8
    """The same for bytes. There, 8 rows by weights of 3072 x 768 take 105 us, and 149 with AVX512-VNNI. 4 rows take 108
    and 107."""
    matrix_tiles_fewest_rows_of_panel: int = 16
    """The same if each task packs the right side. Not measured."""
    matrix_tiles_task_rows: int = 128
    """The same as ``product_task_rows`` with AMX."""
    matrix_tiles_serial_multiplications: int = 1 << 20
    """The same as ``serial_multiplications`` with AMX, whose core multiplies sixteen times as much at once."""
    matrix_tile_cost: float = 4.0
    """Cost of a step of the reduction for a tile of AMX, whatever its rows: the loads of the right side. It is counted
    in multiplications of vectors."""
    matrix_row_cost: float = 0.125
    """Cost of each row of such a tile. A core multiplies sixteen vectors in the time of one of AVX-512."""
    sum_vectors_in_flight: int = 10
    """Vectors of sums that keep a core busy. Each waits 4 cycles for its last addition, and 2 may begin in a cycle.
    With 8, which is just enough, every late load is lost time. Compared to 6 x 2 vectors of AVX2, 4 x 2 run at 0.86 of
    the rate, and 5 x 2 at 0.97."""
    step_overhead: int = 1
    """Cost of a tile's reduction step on top of its multiplications (loads of the right side), in vectors of sums."""
    across_lines_cost: float = 1.05
    """Relative cost of a tile whose positions may lie on two lines: each position has its own address."""
    longest_sum: int = 384
    """Most products that are summed one by one. The error of longer sums would be more than twice that of libraries."""
    sum_length: int = 256
    """Products in each partial sum of a long sum."""
    fetch_steps: int = 8
    """Steps of the reduction between prefetches of the next weights."""
    unrolled_vectors: int = 16
    """Most additions of vectors in the innermost loop of a tile that prefetches. Convolutions took 0.96 to 1.0 times
    as long with 16 as with 128. That was one core of an Emerald Rapids Xeon, with SSE and AVX-512."""
    least_tiles_of_fetch: int = 2
    """Fewest tiles of a block of weights for which the next block is prefetched. A single tile reads a stream, which
    the hardware prefetches."""
    convolution_task_positions: int = 256
    """Output positions of a parallel task of a convolution, which reuse a panel of weights. At most twice as many are
    in the second-level cache. Longer lines are divided."""
    convolution_task_lines: int = 4
    """Most lines of a task, whatever their length."""
    packed_block: int = 64
    """Elements of an output channel that are packed at once in a call. With a panel's channels they fit the first-level
    cache."""
    packing_ns: float = 1.0
    """Nanoseconds in which one core packs an element. It took 1.1 on a Xeon with AVX-512 that other programs used too.
    The weight had 2.4 million elements and windows of 3 x 3."""
    weights_cost: int = 4
    """Cost for a task of reading a vector of weights from the third-level cache, in multiplications of vectors."""
    weights_again_cost: int = 1
    """The same if the preceding task has read them: they lie in the second-level cache."""
    copy_cost: int = 4
    """Cost for a task of copying a vector of data, in the same unit."""
    transposition_cost: int = 12
    """The same if the data lies in another order, as channels first."""
    depthwise_task_lines: int = 14
    """Fewest lines of a task of a depthwise convolution, if there are enough tasks. Neighbouring tasks copy some lines
    twice, and each panel of channels makes its own copy."""
    attention_task_panels: int = 4
    """Panels of queries of a task of attention: so many read a block of keys while it is in the cache."""
    attention_block_keys: int = 128
    """Keys of a block of attention: their rows and the scores of a panel of queries fit into a first-level cache."""
    cpu_attention_largest_head: int = 512
    """Most elements of a head. A task's queries and sums then stay in the first- and second-level cache."""
    cpu_attention_fewest_queries: int = 1
    """Fewest queries. With fewer, most lanes are empty."""
    copied_at_once: int = 16
    """Elements that a copy moves at once."""
    recurrent_rows: int = 4
    """Rows of the batch of a recurrent layer's tile. Four rows of four gates fill 16 of AVX-512's 32 registers."""
    recurrent_vectors: int = 2
    """Vectors of units of a block of weights of a cell with one gate."""
    recurrent_weight_bytes: int = 2 * 1024 * 1024
    """Bytes of a layer's recurrent weights above which threads divide its units, with a barrier behind each step. With
    fewer, each core's second-level cache holds them, and threads divide the batch."""
    recurrent_serial_work: int = 4_000_000
    """Multiplications of a layer up to which one thread computes all of its batch."""
    recurrent_cluster: int = 8
    """Most blocks of a cluster that computes a recurrent layer on a GPU: so many every device with clusters has."""
    recurrent_warps: int = 8
    """Warps of such a block. A thread may have 255 registers, and a state that a lane loads is multiplied by more
    weights than with 16 warps. On an H200 26 steps of an LSTM of 256 units take 22 us for one row, and 25 us with 16
    warps."""
    recurrent_register_weights: int = 128
    """Most weights that a thread of such a block has in registers: half of its registers."""
    recurrent_gpu_rows: int = 24
    """Most rows of the batch of a cluster. Not measured."""
    recurrent_cells: int = 3
    """Most cells of a lane, whose states stay in registers. Not measured."""
    recurrent_rows_together: int = 2
    """Rows that are multiplied at once by weights in registers. More have no registers for their sums."""
    recurrent_rows_at_once: int = 4
    """Rows that are multiplied at once by other weights. Not measured. Loads of such weights some turns ahead lost.
    On an H200 26 steps of an LSTM of 512 units took 162 us with 64 registers for them, 147 with 32, 136 with none."""
    recurrent_batches: tuple[int, ...] = (1, 4, 16, 64)
    """Batches for which a layer with a batch of symbolic size is divided."""
    recurrent_step_cycles: int = 1500
    """Cycles of a step without its products: an exchange of states, sums over lanes and a cell. An H200 takes 1.0 us
    for a step of an LSTM of 256 units and one row, whose products take 256 cycles."""
    recurrent_rate: int = 64
    """Products per cycle of a multiprocessor: half of its peak. On an H200, four more rows of an LSTM of 256 units take
    1.7 us more. At the peak they would take 0.6 us."""
    recurrent_shared_rate: int = 128
    """Bytes of weights per cycle that a multiprocessor reads from its shared memory: the hardware's."""
    recurrent_streamed_rate: int = 32
    """Bytes of weights per cycle that a multiprocessor reads from the second-level cache. On an H200 with an LSTM of
    512 units it is 40 with one cluster, and 26 with 13 of them."""
    recurrent_streamed_bytes: int = 1024 * 1024
    """Most bytes of weights that a block reads in each step. At the rate above they take 18 us, and a step of a loop
    has five launches. Not measured."""
    unrolled_steps: int = 8
    """Most steps of a loop that is written step by step. On a Xeon, 8 steps of one small kernel take 5 us, and 47 us in
    a loop of the host. They take 0.2 s more to compile."""
    cpu_written_steps: int = 4
    gpu_written_steps: int = 8
    """Least steps of a recurrent cell that become one kernel if a model writes them out. On a GPU a stitched kernel
    takes a few steps of few rows with what is around them. Not measured."""
    fourier_kernel_length: int = 64
    """The least length of a Fourier transform that becomes one kernel on a CPU."""
    fourier_largest_radix: int = 16
    fourier_largest_prime: int = 13
    """The largest radix of a stage of that kernel, and the largest prime factor of a radix. Larger ones do not fit in
    AVX-512's registers."""
    fourier_pass_cost: float = 14.0
    """Cost of a stage for each number: loads, stores and twiddles, in additions."""
    fourier_serial_numbers: int = 16384
    """Numbers of all rows of a Fourier transform up to which one thread of a CPU transforms them."""
    taps_inside: float = 0.9
    """The greatest share of a convolution's taps that lie inside the image, for kernels on CPUs that ask for each tap
    whether it does. With a dilation of 24 they took 3.5 ms in the place of 11.6."""
    selection_block: int = 64
    """Elements of a row that a CPU compares at once with the least of the largest ones so far. Not measured."""
    serial_selection: int = 65536
    """Elements of all rows up to which one thread of a CPU selects the largest ones. A row of 32,000 took one core
    20 us, and a parallel region takes about 5."""
    fourier_largest_factor: int = 256
    """The largest factor of a Fourier transform's length that becomes one matmul. Prime factors above it become a
    convolution of a power of two. Chosen so that a matrix has a megabyte, not measured."""
    fourier_stage_cost: int = 18
    """Cost of a factor of a Fourier transform for each number, in products of complex numbers. With it, the fastest
    factors cost the least on an Intel Xeon (AVX-512, one thread, 1 and 64 rows). For 1,024 they are 16, 8 and 8."""
