# SPDX-License-Identifier: Apache-2.0
"""Constants of the strategies for rows on a GPU: staging, one sweep, transposed loads, split rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StrategyChoices:
    """Constants of the strategies for rows on a GPU: staging, one sweep, transposed loads, split rows."""

    # -- long rows that are copied into shared memory ------------------------------------------------------------------
    async_copy_time: float = 0.97
    """The estimated time of such rows, relative to reading and writing all of them once at a copy's pace. Softmax and
    RMS norm of 16,384 columns took 128 and 129 us with such rows. With rows in registers they took 134 and 132 us."""
    async_copy_columns: int = 16 * 1024
    """Columns of a row from which on cp.async stages it in shared memory. If passes behind a reduction read inputs
    that rows share, only rows of more than ``register_row_bytes`` are staged."""
    async_copy_item_bytes: int = 2
    """Most bytes of an element of rows that are written. Rows of float32 are as fast in registers (within 1%)."""
    async_copy_columns_unwritten: int = 4 * 1024
    """The same if the kernel writes nothing that is as long as the row."""
    async_copy_unwritten_threads: tuple[tuple[int, int], ...] = (
        (8 * 1024, 64),
        (32 * 1024, 128),
        (1 << 40, 256),
    )
    """Threads of a block of such rows, up to so many bytes of a row. Cross-entropy of 4,096 columns took 61 us with
    64 threads, 69 with 128 and 84 with 256."""
    async_copy_threads: int = 256
    """Threads of a block that has a whole row, or a slice of which only ``least_async_copy_resident`` fit a
    multiprocessor."""
    async_copy_cluster_threads: int = 128
    """Threads of a block of a cluster if ``async_copy_resident`` of them fit a multiprocessor. Softmax of 131,072
    columns took 130 us as 8 blocks of 128 threads, and 133 us as 4 of 256."""
    async_copy_late_threads: int = 256
    async_copy_late_large_threads: int = 512
    """Threads of a block if passes behind a reduction read inputs that rows share, which come from the second-level
    cache. One figure is for blocks of which ``async_copy_resident`` fit a multiprocessor, the other for larger
    blocks. So a multiprocessor has about 1,536 threads. An RMS norm of 131,072 columns took 126 us as 8 blocks of 256
    threads. As 8 blocks of 512 it took 138 us, and as 4 of 512 it took 128 us. One of 65,536 columns took 125 us as 4
    of 256, and 130 as 4 of 512."""
    least_async_copy_resident: int = 3
    """Fewest blocks that a multiprocessor's shared memory must hold."""
    async_copy_splits: tuple[int, ...] = (2, 4, 8)
    """Blocks that may share such a row."""
    async_copy_resident: int = 6
    """Blocks that it should hold if a row has several, as far as clusters are large enough. No more blocks share a
    row than needed."""

    # -- long rows that are only reduced, in one sweep -----------------------------------------------------------------
    online_time: float = 0.85
    """The estimated time of such rows, relative to reading all of them once at a copy's pace. Cross-entropy of
    65,536, 131,072 and 262,144 columns took 64, 64 and 68 us in one sweep. In the shared memory of a cluster it took
    75, 77 and 79 us."""
    online_row_bytes: int = 64 * 1024
    """Bytes of a row beyond which it is swept once rather than staged in shared memory."""
    online_threads: int = 256
    online_resident: int = 6
    """Threads of a block of such rows, and blocks of a multiprocessor. 5 and 8 of these blocks are as fast."""
    online_vectors: int = 2
    """Vectors of each input that a thread has in flight."""
    online_words: int = 8
    """Most registers that these vectors may take."""

    # -- inputs that are read across memory ----------------------------------------------------------------------------
    transposed_bytes: int = 256 * 1024
    """Bytes of an input from which on its patches are transposed in shared memory. A smaller input stays in the
    caches."""
    transposed_rows: tuple[int, ...] = (32, 16, 8)
    """Rows of a block that transposes patches, best first. They are neighbours in memory, so 8 of four bytes are a
    sector of 32."""
    transposed_threads: int = 8
    """Fewest threads of a row. With vectors of four elements they store 128 bytes. They read their elements from the
    patch without bank conflicts within a warp."""
    transposed_columns: int = 64
    """Columns of a patch if nothing is reduced."""
    least_transposed_columns: int = 16
    """Columns of a row below which a block's rows lie close together anyway."""
    transposed_block: int = 256
    """Fewest threads of such a block."""
    transposed_loads: int = 16
    """Loads of a thread that are in flight before the first one is needed."""
    transposed_sample: int = 33
    """Rows and columns that are sampled to see how an input lies in memory."""
    least_transposed_bytes: int = 32
    """Fewest bytes of neighbouring rows that a block takes: a sector, the least that a GPU reads."""
    uncoalesced_times: float = 2.0
    """Factor by which the sectors of an input or a result exceed its bytes from which on its accesses are
    uncoalesced."""
    transposed_line_bytes: int = 64
    """Fewest bytes of neighbouring rows that a block takes if shared memory has room. Among such blocks, those are
    best that share the rows out evenly among the multiprocessors. As 196 blocks of 32 rows, 6,272 rows of 768 columns
    reached 79% of a copy's speed."""
    transposed_splits: tuple[int, ...] = (2, 4, 8)
    """Blocks that may share rows that are transposed and reduced."""
    transposed_resident: tuple[int, ...] = (3, 2, 1)
    """Fewest blocks of a multiprocessor that such mappings should have, best first. Among mappings with as many
    blocks, the one with most rows a block is best. On an H200 a layer norm of 4096 transposed columns of float32 took
    58 us in whole rows, 8 a block. It takes 41 us as 32 rows over 8 blocks. Of 8192 columns it took 129 us
    (uncoalesced) and takes 55 us."""
    persistent_time: float = 0.8
    """The estimated time of rows that persistent clusters transpose, relative to blocks that end. A layer norm of
    4096 x 4096 transposed columns of float32 took 32.7 us in persistent clusters, and 40 to 42 us otherwise."""
    persistent_resident: int = 2
    """Persistent blocks of a multiprocessor that transpose groups of rows: one hides the other's reductions."""
    persistent_groups: int = 4
    """Fewest groups of rows that each cluster of such blocks should have. With three or four groups each, 6,272 rows
    of 768 columns took 12.7 us. In blocks that end they took 11.0 us."""
    persistent_columns: int = 256
    """Fewest columns of a row that each block of a cluster should have."""
    persistent_registers: int = 32
    """Registers of their threads in addition to the tiles. With 16 and 24 they took longer than blocks that end."""
    persistent_most: int = 32
    """Most groups of rows of a cluster. Each group has barriers of its own, which a thread makes one by one."""
    persistent_line_bytes: int = 64
    """Fewest bytes of neighbouring rows that they copy: the least that memory moves at once."""
    transposed_registers: int = 64
    """Fewest registers of a thread of such blocks. With 42 to 48 they spill, and take up to half as long again."""

    # -- products of few rows ----------------------------------------------------------------------------------------
    few_rows: int = 16
    """Most rows of a product that waits for its weight. An H200 computes 13 float32 operations a byte that it reads."""
    few_dense_rows: int = 2
    """The same for lanes, if the weight is not dequantized. A step of a Llama-like decoder with bfloat16 weights took
    865 us for one token and 933 us for two, on an H200. In cuBLASLt it took 1,812 and 1,450 us."""
    few_float_rows: int = 4
    """The same for weights of float32, of which each byte is multiplied half as often. On an H200 a step of four such
    layers for four tokens took 558 us, and 820 us in cuBLASLt."""
    matrix_rows: int = 16
    """The same for matrix units. With four tokens the step took 1,177 us, and 1,295 us in lanes. With eight it took
    1,962 us in cuBLASLt."""
    matrix_factor_share: float = 0.7
    """Most of a block's shared memory that these rows may take. There are sums of warps and values of norms too."""
    narrow_share: float = 0.7
    """Share of a weight's bytes that the tensors may have that it is computed from."""
    weight_rows: int = 4
    """Most neighbouring rows of weights that are read together."""
    weight_results: int = 16
    """Most sums of a row of the domain, from which on fewer rows of weights are read together."""
    product_results: int = 64
    """Most results of a product that one row of weights gives."""
    weight_columns: int = 8
    """Most columns of a thread's vector of weights: a word of 4-bit integers."""
    weight_warps_cost: float = 0.02
    """Cost of twice as many warps for a row of weights, as a fraction of the time. They wait for each other."""
    weight_round_seconds: float = 0.8e-6
    """Seconds that each round of rows of weights waits for its loads and sums. On an H200, 3,072 rows of 2,048 columns
    behind a norm took 9.5 us in three rounds and 8.4 us in one."""
    weight_words: int = 48
    """Registers of weights that a thread has in flight."""
    weight_sums: int = 8
    """Accumulators of a thread, over all sums, from which on the latency of additions is hidden."""
    matrix_lane_bytes: int = 32
    """Most bytes of a row of weights that neighbouring loads of a lane take. Lanes of 32 read whole lines of a row.
    On an H200 the kernel of a layer took 52.6 us in the place of 54.9 for eight tokens. With weights of 4 bits it took
    55.2 us in the place of 56.4."""
    matrix_bytes: int = 64 << 10
    """Bytes of weights that a block has in flight for matrix units. With twice as many for 512 threads a layer took
    66 us in the place of 58, since registers spill. With half as many for 256 threads it took 2 us longer."""
    matrix_block_threads: int = 256
    """Threads of a block whose matrix units multiply weights of 16 bits. Four tokens took 44.1 us a layer on an H200,
    51.3 with 512 threads and 52.6 with 384. Eight took 53.4 us, and 60.6 with 512."""
    matrix_block_cost: float = 0.2
    """Cost of blocks of another size, as a fraction of the time: of those measurements."""
    matrix_busy_share: float = 0.6
    """Share of the time in which warps compute, if all multiprocessors read weights of 4 bits at the memory's speed. So
    a few idle ones cost nothing. With 0.95, and less cost of rounds, 4-bit layers took 58.5 us in the place of 56.4."""
    matrix_round_cost: float = 0.15
    """Cost of each further time that the warps of a block share rows of weights, as a fraction of the time. They wait
    for each other, and then for the next weights."""
    matrix_factors: int = 4
    """Octets of factors that a thread loads at once, for shared memory. Not measured."""
    matrix_ahead_share: float = 0.1
    """Share of the second-level cache that weights may take before the barrier that their product is behind. It waits
    for them: with 0.4 a layer took 56.4 us in the place of 54.6. Fetching later weights before each load gained
    nothing."""
    ring_bits: int = 8
    """Most bits of the weights that get a ring. With 16 bits a ring gained nothing on an H200. Four tokens took 425
    to 429 us in the place of 426, and eight took 458 to 464 us in the place of 458."""
    ring_steps: int = 2
    """Steps of weights in the ring of matrix units. One is multiplied while the others are on their way. On an H200 a
    step of 8 layers with weights of 4 bits took 467 us. With three steps in the ring it took 481 us, and with four 486
    us. Copies in flight delay the loads that blocks wait for. Loads into registers one step ahead took 488 us."""
    matrix_dense_rows: int = 3
    """Fewest rows that matrix units multiply by weights that are not packed. For two tokens the step took 882 us, and
    861 us in lanes."""

    # -- rows over several blocks (task splitting) ---------------------------------------------------------------------
    split_columns: int = 1024
    """Columns of a row up to which it is never split (AStitch 4.3)."""
    split_gain: float = 0.9
    """A split must bring the estimated time down to this share of the time without it."""
    fewer_blocks_gain: float = 0.97
    """More blocks a row must bring the estimated time of the last choice down to this share. Among splits that are
    about as good, the one of fewest blocks is taken."""
    blocks_to_fill: int = 4
    """Blocks of a multiprocessor up to which rows without reductions are split: nothing is exchanged."""
    lone_element_seconds: float = 12e-12
    """Additional seconds of an element in each pass if no second block of the multiprocessor fills the pauses. Memory
    then waits for computation. It was 11 to 20 ps with bfloat16, and 2 to 12 ps with float32
    (``scripts/ab_splits.py``)."""
    spill_slowdown: float = 1.5
    """Slowdown of rows whose block spills registers."""
    staged_slowdown: float = 1.7
    """Slowdown of rows whose block stages them in shared memory, and is the only one of its multiprocessor."""
    register_row_bytes: int = 48 * 1024
    """Bytes read of a row up to which a block's registers are the best storage for it, for any number of rows. Rows
    of 32 KiB run at a copy's speed, and rows of 64 KiB at 0.6 to 0.8 of it (``scripts/ab_splits.py``)."""
    cached_share: float = 0.2
    """Cost of reading again from the second-level cache, relative to reading from memory."""
    cache_fill: float = 0.67
    """The share of the second-level cache up to which rows are still there when they are read again. The rows that
    the blocks at work read and write count. At 0.57 softmax, RMS norm and cross-entropy of bfloat16 were fastest at
    every length from 32,768 columns. At 0.83 they took 5% longer or more. At 1.1 nothing was left in the cache
    (``scripts/ab_splits.py``)."""
    cached_threads: int = 1024
    """Threads of a multiprocessor that read rows again from the cache. More threads begin more rows than it holds."""
    cached_blocks: tuple[tuple[int, int], ...] = (
        (1, 256),
        (1, 512),
        (2, 256),
        (4, 256),
        (8, 256),
        (8, 512),
        (8, 1024),
    )
    """Blocks of a row that is read again from the cache, and their threads. Small blocks wait for each other less."""
    cached_chunks: int = 4
    """Vectors of a thread of such a block in a step."""
    split_block_shapes: tuple[tuple[int, int], ...] = ((512, 2), (512, 1))
    """Threads of a block and blocks of a multiprocessor, if all blocks of the device share rows."""
    streamed_words: int = 24
    """Registers for loads in flight of such a block that keeps nothing in registers."""
    caches_filled: int = 2
    """Factor by which a kernel's reads, and its writes, each exceed the second-level cache from which on its inputs
    stay there. At one time the cache's size (a transposition of 67 MB with a layer norm) nothing is gained."""
    l2_resident_words: int = 48
    """Registers of loads of a pass up to which they carry the policy, if cp.async does not stage them."""
