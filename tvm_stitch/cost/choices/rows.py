# SPDX-License-Identifier: Apache-2.0
"""Constants of rows that stay in their blocks: symbolic lengths, recomputation, threads of a row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowChoices:
    """Constants of rows that stay in their blocks: symbolic lengths, recomputation, threads of a row."""

    # -- symbolic extents ----------------------------------------------------------------------------------------------
    symbolic_columns: int = 1024
    """Assumed columns of a row of symbolic length, for decisions that cannot wait until the length is known."""
    symbolic_lengths: tuple[int, ...] = (128, 1024, 8192, 32768)
    """Lengths up to which a GPU has a kernel for rows of symbolic length. The rows suit a warp, a small block, half
    of the largest block, and shared memory. Rows of an eighth of a bound or more leave few threads without work, and
    shorter rows take another kernel."""
    scalar_length: int = 128
    """Columns up to which vectors are not worth a kernel of their own."""

    # -- what a row domain may hold ------------------------------------------------------------------------------------
    recomputed_operators: int = 4
    """Most heavy operators that may be evaluated again for every row instead of once (no in-block scheme shares
    them)."""
    recomputed_times: int = 4
    """Times from which on a heavy operator is not computed again for each element, as in overlapping windows. In
    PoolFormer each pool computed a norm nine times: a layer took 408 us on an H200 for 4 MB of float16."""
    window_reads: int = 4
    """Elements of one tensor from which on an element-wise operator reads a window."""
    window_columns: int = 16384
    """Elements of a reduction from which on its kernel reads no windows. Blocks keep such rows in shared memory, or in
    all of their registers. So windows come from the second-level cache, few of them at a time."""
    window_words: float = 32.0
    """Registers for elements of a window that a thread loads together. It adds them up before it loads others."""
    window_loads: int = 16
    """Most elements that are read for such an operator at all the points at which another one reads it. The bound holds
    in stitch ops and in TVM's kernels. On an H200 Inception's pools of 9 elements behind others of 9 took 439 us in one
    kernel, and 161 us apart. CaiT's products by 6 x 6, with a softmax between, took 955 us in one, and 276 us apart."""
    inlined_operators: int = 64
    """Most operators of an expression with conditions below another condition, where a value is written again at each
    of its reads. Moves of data do not count."""
    hoisted_reads: int = 4
    """Reads from which on a value that no row changes is worth a register for each column."""
    guarded_visits: int = 512
    """Most expressions below conditions that are followed to find loads of vectors, in a pass."""
    index_terms: int = 400
    """Terms of a lowered index that a kernel may hold: LLVM takes about a second for 32 lanes of so many."""

    # -- threads of a row ----------------------------------------------------------------------------------------------
    tile_registers: int = 72
    """32-bit registers a thread may spend on tiles before the row takes more threads. On an H200, 512 columns with 7
    to 10 inputs took 69 to 71 us with 64 to 256 threads. With 512 threads they took 75 to 85 us
    (``scripts/ab_threads.py``)."""
    long_row_registers: int = 112
    """The same if the row takes a large block already. It was measured for rows of 256 to 8192 columns."""
    largest_block_from_registers: float = long_row_registers * 0.55
    """Registers for tiles of a thread in half of the largest block, from which on the row takes all of it."""
    large_block: int = 512
    """Threads from which on a block is large."""
    small_block_registers: int = long_row_registers * 5 // 4
    """``long_row_registers`` of smaller blocks."""
    largest_block_registers: int = 20
    """Registers that a thread of the largest block needs in addition to its tiles."""
    overhead_registers: int = 36
    """Registers a thread needs in addition to tiles and accumulators, for addresses, loop counters and values being
    computed. They count in kernels with grid barriers, and in the estimate of split rows."""
    small_block: int = 128
    """Threads that short rows fill by sharing a block (horizontal packing)."""
    smallest_block: int = 64
    """Fewest threads of a block to which packing is reduced if the device has idle multiprocessors otherwise."""
    blocks_per_multiprocessor: int = 2
    """Blocks of short rows that a multiprocessor should get before rows share one."""
    busy_threads: int = 512
    """Threads a multiprocessor should have: few rows get more threads each up to that."""
    flat_threads: int = 128
    """Threads of a block that takes a piece of a flat domain."""
    flat_vectors: int = 2
    """Vectors of one of its threads, if all threads of a device have as many. The GELUs of a ViT-B/16 took 37.3 us
    with two vectors in each of 128 threads (H200). With one vector in each of 256 threads they took 39.0 us. They
    read 77 MB behind the product that wrote them, and write 77 MB."""
    flat_threads_per_multiprocessor: int = 256
    """Threads of a flat kernel that a multiprocessor should have before their vectors get longer."""
    step_elements: int = 16
    """Elements that a thread takes in a step if nothing is kept in registers."""
    shared_slack_bytes: int = 256
    """Shared memory left free in addition to partial results if values are staged there, for the alignment of
    buffers."""
    least_shared_reserve_bytes: int = 1024
    """The least shared memory left free in addition to staged values."""
    staged_chunks: tuple[int, ...] = (4, 2, 1)
    """Vectors that a thread may take in a step if values are staged in shared memory. Those that cover the fewest
    columns are taken."""
    crowded_cost: float = 4.0
    """Cost of each time that tiles exceed ``tile_registers``. The cost of an idle lane for every busy one is 1."""
    uncoalesced_cost: float = 0.6
    """Cost if the threads of a row read nothing side by side."""
    sector_bytes: int = 64
    """Bytes of a row that threads of a packed block should read side by side: two sectors at a time."""
    chunk_cost: float = 0.02
    """Cost of each vector of a thread more or less than two, in fractions of a warp. One leaves too little in
    flight."""
