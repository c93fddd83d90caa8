# SPDX-License-Identifier: Apache-2.0
"""Constants of the strategies for rows on a GPU: staging, one sweep, transposed loads, split rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StrategyChoices:
    """Constants of the strategies for rows on a GPU: staging, one sweep, transposed loads, split rows."""

    # -- long rows that are copied into shared memory ------------------------------------------------------------------
    async_copy_time: float = 0.97
    """The estimated time of such rows, relative to reading and writing all of them once at a copy's pace: rows in
    registers took 134 and 132 us where softmax and RMS norm of 16,384 columns took 128 and 129 so."""
    async_copy_columns: int = 16 * 1024
    """Columns of a row from which on it is copied into shared memory in the background; where passes behind a reduction
    read what rows share, only rows of more than ``register_row_bytes``."""
    async_copy_item_bytes: int = 2
    """Bytes of an element of rows that are written at most: of float32 they are as fast in registers (within 1%)."""
    async_copy_columns_unwritten: int = 4 * 1024
    """The same where nothing as long as the row is written."""
    async_copy_unwritten_threads: tuple[tuple[int, int], ...] = (
        (8 * 1024, 64),
        (32 * 1024, 128),
        (1 << 40, 256),
    )
    """Threads of a block of such rows, up to so many bytes of a row: cross-entropy of 4,096 columns took 61 us with 64,
    69 with 128 and 84 with 256."""
    async_copy_threads: int = 256
    """Threads of a block that has a row alone, or a part of which only ``least_async_copy_resident`` have room."""
    async_copy_cluster_threads: int = 128
    """Threads of a block of a cluster of which ``async_copy_resident`` have room: softmax of 131,072 columns took 130
    us as 8 blocks of 128, 133 as 4 of 256."""
    async_copy_late_threads: int = 256
    async_copy_late_large_threads: int = 512
    """Threads of a block where passes behind a reduction read what rows share, which comes from the second-level cache:
    of one of which ``async_copy_resident`` have room, and of a larger one. So a multiprocessor has about 1,536 threads.
    An RMS norm of 131,072 columns took 126 us as 8 blocks of 256 threads, 138 as 8 of 512 and 128 as 4 of 512; one of
    65,536 columns 125 as 4 of 256, 130 as 4 of 512."""
    least_async_copy_resident: int = 3
    """Blocks that a multiprocessor's shared memory must hold."""
    async_copy_splits: tuple[int, ...] = (2, 4, 8)
    """Blocks that may share such a row."""
    async_copy_resident: int = 6
    """Blocks that it should hold where a row has several, if clusters are large enough; no more share a row than
    needed."""

    # -- long rows that are only reduced, in one sweep -----------------------------------------------------------------
    online_time: float = 0.85
    """The estimated time of such rows, relative to reading all of them once at a copy's pace: cross-entropy of 65,536,
    131,072 and 262,144 columns took 64, 64 and 68 us so, 75, 77 and 79 in the shared memory of a cluster."""
    online_row_bytes: int = 64 * 1024
    """Bytes of a row beyond which it is swept once rather than copied into shared memory."""
    online_threads: int = 256
    online_resident: int = 6
    """Threads of a block of such rows, and blocks of a multiprocessor: 5 and 8 of these are as fast."""
    online_vectors: int = 2
    """Vectors of each input that a thread has in flight."""
    online_words: int = 8
    """Registers that they may take."""

    # -- inputs that are read across memory ----------------------------------------------------------------------------
    transposed_bytes: int = 256 * 1024
    """Bytes of an input from which on patches of it are turned in shared memory; a smaller one stays in the caches."""
    transposed_rows: tuple[int, ...] = (32, 16, 8)
    """Rows of a block that turns patches, best first: neighbours in memory, so 8 of four bytes are a sector of 32."""
    transposed_threads: int = 8
    """Threads of a row at least: with vectors of four elements they store 128 bytes, and find their elements in the
    patch without two of a warp meeting in a bank."""
    transposed_columns: int = 64
    """Columns of a patch where nothing is reduced."""
    least_transposed_columns: int = 16
    """Columns of a row below which a block's rows lie close together anyway."""
    transposed_block: int = 256
    """Threads of such a block at least."""
    transposed_loads: int = 16
    """Loads of a thread that are on their way before the first one is needed."""
    transposed_sample: int = 33
    """Rows and columns by which it is seen how an input lies in memory."""
    least_transposed_bytes: int = 32
    """Bytes of neighbouring rows that a block takes at least: a sector, the least that a GPU reads."""
    uncoalesced_times: float = 2.0
    """Times the bytes of an input or a result that its sectors may have before it counts as lying across memory."""
    transposed_line_bytes: int = 64
    """The same where shared memory has room. Of such blocks those are best that share the rows out evenly among the
    multiprocessors: 6,272 rows of 768 columns took 79% of a copy's speed as 196 blocks of 32 rows."""
    transposed_splits: tuple[int, ...] = (2, 4, 8)
    """Blocks that may share rows that are turned and reduced."""
    transposed_resident: tuple[int, ...] = (3, 2, 1)
    """Blocks of a multiprocessor that such mappings should have at least, best first; among those with as many the one
    with most rows a block is best. A layer norm of 4096 transposed columns of float32 took 58 us on an H200 in whole
    rows, 8 a block, and takes 41 as 32 rows over 8 blocks, of 8192 columns 129 (read across memory) and 55."""
    persistent_time: float = 0.8
    """The estimated time of rows that clusters turn one group after the other, relative to blocks that end: a layer
    norm of 4096 x 4096 transposed columns of float32 took 32.7 us so, 40 to 42 otherwise."""
    persistent_resident: int = 2
    """Blocks of a multiprocessor that turn one group of rows after the other: one hides the other's reductions."""
    persistent_groups: int = 4
    """Groups of rows that each cluster of such blocks should have at least: 6,272 rows of 768 columns, three or four
    each, took 12.7 us, and 11.0 in blocks that end."""
    persistent_columns: int = 256
    """Columns of a row that each block of a cluster should have at least."""
    persistent_registers: int = 32
    """Registers of their threads besides the tiles: with 16 and 24 they took longer than blocks that end."""
    persistent_most: int = 32
    """Groups of rows that a cluster takes at most: each has barriers of its own, which a thread makes one by one."""
    persistent_line_bytes: int = 64
    """Bytes of neighbouring rows that they copy at least: what memory moves at once."""
    transposed_registers: int = 64
    """Registers of a thread that such blocks have at least: with 42 to 48 they spill, and take up to half as long
    again."""

    # -- rows over several blocks (task splitting) ---------------------------------------------------------------------
    split_columns: int = 1024
    """Columns of a row up to which it is never split (AStitch 4.3)."""
    split_gain: float = 0.9
    """A split must bring the estimated time down to this part of what it is without."""
    fewer_blocks_gain: float = 0.97
    """More blocks a row must bring the estimated time of the last choice down to this part: of splits that are about as
    good the one of fewest blocks is taken."""
    blocks_to_fill: int = 4
    """Blocks a multiprocessor up to which rows without reductions are split: nothing is exchanged."""
    lone_element_seconds: float = 12e-12
    """What an element takes longer in each pass when no second block of the multiprocessor fills the pauses: what is
    computed then, memory waits for. It was 11 to 20 ps with bfloat16, 2 to 12 with float32
    (``scripts/ab_splits.py``)."""
    spill_slowdown: float = 1.5
    """How much longer rows take whose block spills registers."""
    staged_slowdown: float = 1.7
    """How much longer rows take whose block stages them in shared memory, and is the only one of its multiprocessor."""
    register_row_bytes: int = 48 * 1024
    """What rows read up to which a block's registers are the best place for them, however many rows there are: 32 KiB
    run at a copy's speed, 64 KiB at 0.6 to 0.8 of it (``scripts/ab_splits.py``)."""
    cached_share: float = 0.2
    """What reading again from the second-level cache costs, reading from memory being 1."""
    cache_fill: float = 0.67
    """The part of the second-level cache up to which what is read again is still there: rows that the blocks at work
    read and write. At 0.57 softmax, RMS norm and cross-entropy of bfloat16 were fastest at every length from 32,768
    columns, at 0.83 they took 5% longer or more, and at 1.1 nothing was found again (``scripts/ab_splits.py``)."""
    cached_threads: int = 1024
    """Threads of a multiprocessor that read rows again from the cache: more begin more rows than it holds."""
    cached_blocks: tuple[tuple[int, int], ...] = (
        (1, 256),
        (1, 512),
        (2, 256),
        (4, 256),
        (8, 256),
        (8, 512),
        (8, 1024),
    )
    """Blocks of a row that is read again from the cache, and their threads: small ones wait for each other less."""
    cached_chunks: int = 4
    """Vectors of a thread of such a block in a step."""
    split_block_shapes: tuple[tuple[int, int], ...] = ((512, 2), (512, 1))
    """Threads of a block and blocks of a multiprocessor, where all blocks of the device share rows."""
    streamed_words: int = 24
    """Registers for loads in flight of such a block that keeps nothing in registers."""
    caches_filled: int = 2
    """Times that what a kernel reads, and what it writes, each fill the second-level cache from which on its inputs are
    to last there; at once the cache's size (a transposition of 67 MB with a layer norm) nothing is won."""
    l2_resident_words: int = 48
    """Registers of loads of a pass up to which they carry the policy, where they are not copied in the background."""
