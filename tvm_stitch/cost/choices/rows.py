# SPDX-License-Identifier: Apache-2.0
"""Constants of rows that stay in their blocks: symbolic lengths, recomputation, threads of a row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowChoices:
    """Constants of rows that stay in their blocks: symbolic lengths, recomputation, threads of a row."""

    # -- symbolic extents ----------------------------------------------------------------------------------------------
    symbolic_columns: int = 1024
    """Columns that a row of symbolic length is taken to have, where a decision cannot wait until that is known."""
    symbolic_lengths: tuple[int, ...] = (128, 1024, 8192, 32768)
    """Lengths up to which a GPU has a kernel for rows of symbolic length: a warp's, a small block's, half of the
    largest block's, and what shared memory holds. Rows of an eighth of a bound or more, which others do not take, leave
    few threads without work."""
    scalar_length: int = 128
    """Columns up to which vectors are not worth a kernel of their own."""

    # -- what a row domain may hold ------------------------------------------------------------------------------------
    recomputed_operators: int = 4
    """Heavy operators that may be evaluated again for every row instead of once (no in-block scheme shares them)."""
    hoisted_reads: int = 4
    """Reads from which on a value that no row changes is worth a register for each column."""
    index_terms: int = 400
    """Terms of a lowered index that a kernel may hold: LLVM takes about a second for 32 lanes of so many."""

    # -- threads of a row ----------------------------------------------------------------------------------------------
    tile_registers: int = 72
    """32-bit registers a thread may spend on tiles before the row takes more threads: 512 columns with 7 to 10 inputs
    took 69 to 71 us with 64 to 256 threads, 75 to 85 with 512 (``scripts/ab_threads.py``)."""
    long_row_registers: int = 112
    """The same where the row takes a large block already; measured for rows of 256 to 8192 columns."""
    largest_block_from_registers: float = long_row_registers * 0.55
    """Registers for tiles of a thread in half of the largest block, from which on the row takes all of it."""
    large_block: int = 512
    """Threads from which on a block is large."""
    small_block_registers: int = long_row_registers * 5 // 4
    """``long_row_registers`` of smaller blocks."""
    largest_block_registers: int = 20
    """Registers that a thread of the largest block needs besides its tiles."""
    overhead_registers: int = 36
    """Registers a thread needs besides tiles and accumulators in kernels with grid barriers, and in the estimate of
    split rows: addresses, loop counters, what is being computed."""
    small_block: int = 128
    """Threads that short rows fill by sharing a block (horizontal packing)."""
    smallest_block: int = 64
    """Threads down to which fewer rows share a block, where the device has multiprocessors without one otherwise."""
    blocks_per_multiprocessor: int = 2
    """Blocks of short rows that a multiprocessor should get before rows share one."""
    busy_threads: int = 512
    """Threads a multiprocessor should have: few rows get more threads each up to that."""
    flat_threads: int = 128
    """Threads of a block that takes a piece of a flat domain."""
    flat_vectors: int = 2
    """Vectors of one of its threads, where all threads of a device have as many. The GELUs of a ViT-B/16 (77 MB read
    behind the product that wrote them, 77 MB written) took 37.3 us so, 39.0 with one vector in each of 256 threads
    (H200)."""
    flat_threads_per_multiprocessor: int = 256
    """Threads that a multiprocessor should have of a flat kernel before their vectors get longer."""
    step_elements: int = 16
    """Elements that a thread takes in a step where nothing is kept in registers."""
    shared_slack_bytes: int = 256
    """Shared memory left free beside partial results where values are staged there, for the alignment of buffers."""
    least_shared_reserve_bytes: int = 1024
    """The least that is left free beside staged values."""
    staged_chunks: tuple[int, ...] = (4, 2, 1)
    """Vectors a thread may take in a step where values are staged in shared memory: those that cover the fewest
    columns."""
    crowded_cost: float = 4.0
    """Cost of each time that tiles exceed ``tile_registers``, an idle lane for every busy one being 1."""
    uncoalesced_cost: float = 0.6
    """Cost where a row's threads read nothing side by side."""
    sector_bytes: int = 64
    """Bytes of a row that threads of a packed block should read side by side: two sectors at a time."""
    chunk_cost: float = 0.02
    """Cost of each vector a thread more or less than two, in parts of a warp: one leaves too little in flight."""
