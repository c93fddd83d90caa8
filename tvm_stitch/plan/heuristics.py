# SPDX-License-Identifier: Apache-2.0
"""Every constant of choice of fusion, planning and code generation, and the costs that are made of nothing else.

What a device is (its registers, its bandwidth) is in ``tvm_stitch.device``; here is what was found by measuring, on an
H200 unless something else is said, and what was decided. Other modules read these through the module, as
``heuristics.NAME``, so a value that is changed here is changed everywhere.
"""

from __future__ import annotations

from ..graph.extent import Extent

# -- time on a GPU: launches, barriers, bandwidth --------------------------------------------------------------
LAUNCH_SECONDS = 2.5e-6
"""Seconds from one kernel of a stream to the next: 2 to 3 us."""
LAUNCH_DOUBT_SECONDS = 0.5e-6
"""How far that figure may be off. Decisions that close go to fewer launches, which are certain."""
BARRIER_SECONDS = 1.3e-6
"""Seconds of a grid barrier between two phases: 1.0 to 1.3 us (docs/results, "What a barrier costs")."""
GRID_EXCHANGE_SECONDS = 2.5e-6
"""Seconds in which all blocks of a row combine partial results through device memory: a grid barrier, and the way of
the results to memory and back, which phases pay for in bytes instead. All reductions of a level together."""
CLUSTER_EXCHANGE_SECONDS = 0.6e-6
"""The same through the shared memory of a cluster: stores that a barrier there counts, and who waits for it."""
CLUSTER_WAVE_SECONDS = 1.5e-6
"""The same for each further wave of clusters, however many blocks share a multiprocessor: starting them is in it, and
that blocks which hold their part of a row load, reduce and store by turns: 1.2 to 2 us (``scripts/ab_splits.py``)."""
STREAMED_WAVE_SECONDS = 0.9e-6
"""The same of blocks that read their part again, in small steps."""
COPY_SHARE = 0.86
"""Of the datasheet's bandwidth what a device copy reaches, and a kernel on one row domain with it (4.15 TB/s)."""
SIDE_BY_SIDE_SHARE = 0.95
"""Of a copy's bandwidth what is left where parts share a launch: one block shape for all of them, of many threads."""
RESIDENT_SHARE = 0.87
"""The same where the grid has to be resident as a whole (layer-norm backward: 145 us at a copy's pace, 166 so)."""
LONE_BLOCK_SHARES = 2.5
"""How many times its share of the bandwidth a multiprocessor draws while most others are idle."""
TAIL_BLOCK_BYTES = 16 * 1024
"""Bytes that a block of 512 threads with two vectors each moves at once; for the estimate of a last wave."""
TAIL_BLOCK_THREADS = 512
"""Threads of a block in that estimate."""

# -- fusion: which operators join ------------------------------------------------------------------------------
SMALL_SECONDS = 4 * LAUNCH_SECONDS
"""Reductions that take less join a grid-wide scope without a look at each: they cannot lose much."""
FULL_NODES = 100
"""Nodes of a scope that is about as large as it can get: planning it takes long."""
FULL_REFUSALS = 6
"""Refusals for lack of a plan from which on such a scope is not asked about again."""
NODES_AT_ONCE = 32
"""Nodes that are joined before the scopes they make are planned; fewer where that fails."""
OPEN_BINS = 8
"""Scopes that one without a path to them is tried with: keeps the work linear in the size of the graph."""
CPU_SCAN_AS_SUMS, GPU_SCAN_AS_SUMS = 128, 512
"""The longest rows whose running sums are added up anew for each element. On a CPU adding 128 elements to each of 128
takes about as long as 128 additions that wait for each other; on a GPU a scan takes several launches."""
LARGEST_FILLED_WEIGHT = 1 << 29
"""Bytes of the largest weight of one value that becomes a constant: VGG's largest is 411 MB."""
LARGEST_TABLE = 1 << 22
"""Bytes of the largest mask or table that is computed when a model is compiled: a causal mask of 1,024 tokens in
float32. What is larger would take a library's place, and is read from memory. Nothing was measured beyond it."""
EPILOGUE_NODES = 48
"""Element-wise nodes that the epilogue of a matrix product or convolution may have."""
EPILOGUE_LANES = 4
"""Neighbouring places that a thread of our CUDA convolution evaluates an epilogue for at once: 16 bytes of float32."""
CPU_OPERATORS, CPU_ARGUMENTS = 256, 32
"""The most operators and arguments of a stitch op on a CPU: LLVM's time grows faster than the function."""
CPU_OPERATORS_WITH_REDUCES = 64
"""Operators of a stitch op with reductions on a CPU: LLVM's time grows with the product of operators and passes (80
means of one row took it 66 s as one function, 1 s as two)."""

# -- symbolic extents -------------------------------------------------------------------------------------------
SYMBOLIC_COLUMNS = 1024
"""Columns that a row of symbolic length is taken to have, where a decision cannot wait until that is known."""
SYMBOLIC_LENGTHS = (128, 1024, 8192, 32768)
"""Lengths up to which a GPU has a kernel for rows of symbolic length: a warp's, a small block's, half of the largest
block's, and what shared memory holds. Rows of an eighth of a bound or more, which others do not take, leave few threads
without work."""
SCALAR_LENGTH = 128
"""Columns up to which vectors are not worth a kernel of their own."""


def length(columns: Extent) -> int:
    """Columns of a row, as far as they are known or taken to be."""
    return columns if isinstance(columns, int) else SYMBOLIC_COLUMNS


# -- what a row domain may hold --------------------------------------------------------------------------------
RECOMPUTED_OPERATORS = 4
"""Heavy operators that may be evaluated again for every row instead of once (no in-block scheme shares them)."""
HOISTED_READS = 4
"""Reads from which on a value that no row changes is worth a register for each column."""
DIVISION_COPIES = 4
"""How often TVM writes the operands of a division by a symbol that floors."""
INDEX_TERMS = 400
"""Terms of a lowered index that a kernel may hold: LLVM takes about a second for 32 lanes of so many."""

# -- long rows that are copied into shared memory --------------------------------------------------------------
# Measured with scripts/ab_splits.py; plan/strategies/async_copies.py has the figures.
COPIED_COLUMNS = 16 * 1024
"""Columns of a row from which on it is copied into shared memory in the background; where passes behind a reduction
read what rows share, only rows of more than ``REGISTER_ROW_BYTES``."""
COPIED_ITEM_BYTES = 2
"""Bytes of an element of rows that are written at most: of float32 they are as fast in registers (within 1%)."""
COPIED_COLUMNS_UNWRITTEN = 4 * 1024
"""The same where nothing as long as the row is written."""
COPIED_UNWRITTEN_THREADS = ((8 * 1024, 64), (32 * 1024, 128), (1 << 40, 256))
"""Threads of a block of such rows, up to so many bytes of a row: cross-entropy of 4,096 columns took 61 us with 64, 69
with 128 and 84 with 256."""
COPIED_THREADS = 256
"""Threads of a block that has a row alone, or a part of which only ``LEAST_COPIED_RESIDENT`` have room."""
COPIED_CLUSTER_THREADS = 128
"""Threads of a block of a cluster of which ``COPIED_RESIDENT`` have room: softmax of 131,072 columns took 130 us as 8
blocks of 128, 133 as 4 of 256."""
COPIED_LATE_THREADS, COPIED_LATE_LARGE_THREADS = 256, 512
"""Threads of a block where passes behind a reduction read what rows share, which comes from the second-level cache:
of one of which ``COPIED_RESIDENT`` have room, and of a larger one. So a multiprocessor has about 1,536 threads. An RMS
norm of 131,072 columns took 126 us as 8 blocks of 256 threads, 138 as 8 of 512 and 128 as 4 of 512; one of 65,536
columns 125 as 4 of 256, 130 as 4 of 512."""
LEAST_COPIED_RESIDENT = 3
"""Blocks that a multiprocessor's shared memory must hold."""
COPIED_SPLITS = (2, 4, 8)
"""Blocks that may share such a row."""
COPIED_RESIDENT = 6
"""Blocks that it should hold where a row has several, if clusters are large enough; no more share a row than needed."""

# -- long rows that are only reduced, in one sweep ----------------------------------------------------------------
ONLINE_ROW_BYTES = 64 * 1024
"""Bytes of a row beyond which it is swept once rather than copied into shared memory."""
ONLINE_THREADS, ONLINE_RESIDENT = 256, 6
"""Threads of a block of such rows, and blocks of a multiprocessor: 5 and 8 of these are as fast."""
ONLINE_VECTORS = 2
"""Vectors of each input that a thread has in flight."""
ONLINE_WORDS = 8
"""Registers that they may take."""

# -- inputs that are read across memory ---------------------------------------------------------------------------
CROSSED_BYTES = 256 * 1024
"""Bytes of an input from which on patches of it are turned in shared memory; a smaller one stays in the caches."""
CROSSED_ROWS = (32, 16, 8)
"""Rows of a block that turns patches, best first: neighbours in memory, so 8 of four bytes are a sector of 32."""
CROSSED_THREADS = 8
"""Threads of a row at least: with vectors of four elements they store 128 bytes, and find their elements in the patch
without two of a warp meeting in a bank."""
CROSSED_COLUMNS = 64
"""Columns of a patch where nothing is reduced."""
LEAST_CROSSED_COLUMNS = 16
"""Columns of a row below which a block's rows lie close together anyway."""
CROSSED_BLOCK = 256
"""Threads of such a block at least."""
CROSSED_LOADS = 16
"""Loads of a thread that are on their way before the first one is needed."""
CROSSED_SAMPLE = 33
"""Rows and columns by which it is seen how an input lies in memory."""
LEAST_CROSSED_BYTES = 32
"""Bytes of neighbouring rows that a block takes at least: a sector, the least that a GPU reads."""
SCATTERED_TIMES = 2.0
"""Times the bytes of an input or a result that its sectors may have before it counts as lying across memory."""
CROSSED_LINE_BYTES = 64
"""The same where shared memory has room. Of such blocks those are best that share the rows out evenly among the
multiprocessors: 6,272 rows of 768 columns took 79% of a copy's speed as 196 blocks of 32 rows."""

CROSSED_SPLITS = (2, 4, 8)
"""Blocks that may share rows that are turned and reduced."""
CROSSED_RESIDENT = (3, 2, 1)
"""Blocks of a multiprocessor that such mappings should have at least, best first; among those with as many the one with
most rows a block is best. A layer norm of 4096 transposed columns of float32 took 58 us on an H200 in whole rows, 8 a
block, and takes 41 as 32 rows over 8 blocks, of 8192 columns 129 (read across memory) and 55."""
IN_TURN_RESIDENT = 2
"""Blocks of a multiprocessor that turn one group of rows after the other: one hides the other's reductions."""
IN_TURN_GROUPS = 4
"""Groups of rows that each cluster of such blocks should have at least: 6,272 rows of 768 columns, three or four each,
took 12.7 us, and 11.0 in blocks that end."""
IN_TURN_COLUMNS = 256
"""Columns of a row that each block of a cluster should have at least."""
IN_TURN_REGISTERS = 32
"""Registers of their threads besides the tiles: with 16 and 24 they took longer than blocks that end."""
IN_TURN_MOST = 32
"""Groups of rows that a cluster takes at most: each has barriers of its own, which a thread makes one by one."""
IN_TURN_LINE_BYTES = 64
"""Bytes of neighbouring rows that they copy at least: what memory moves at once."""
CROSSED_REGISTERS = 64
"""Registers of a thread that such blocks have at least: with 42 to 48 they spill, and take up to half as long again."""

# -- threads of a row ------------------------------------------------------------------------------------------
TILE_REGISTERS = 72
"""32-bit registers a thread may spend on tiles before the row takes more threads: 512 columns with 7 to 10 inputs
took 69 to 71 us with 64 to 256 threads, 75 to 85 with 512 (``scripts/ab_threads.py``)."""
LONG_ROW_REGISTERS = 112
"""The same where the row takes a large block already; measured for rows of 256 to 8192 columns."""
LARGEST_BLOCK_FROM_REGISTERS = LONG_ROW_REGISTERS * 0.55
"""Registers for tiles of a thread in half of the largest block, from which on the row takes all of it."""
LARGE_BLOCK = 512
"""Threads from which on a block is large."""
SMALL_BLOCK_REGISTERS = LONG_ROW_REGISTERS * 5 // 4
"""``LONG_ROW_REGISTERS`` of smaller blocks."""
LARGEST_BLOCK_REGISTERS = 20
"""Registers that a thread of the largest block needs besides its tiles."""
OVERHEAD_REGISTERS = 36
"""Registers a thread needs besides tiles and accumulators in kernels with grid barriers, and in the estimate of split
rows: addresses, loop counters, what is being computed."""
SMALL_BLOCK = 128
"""Threads that short rows fill by sharing a block (horizontal packing)."""
SMALLEST_BLOCK = 64
"""Threads down to which fewer rows share a block, where the device has multiprocessors without one otherwise."""
BLOCKS_A_MULTIPROCESSOR = 2
"""Blocks of short rows that a multiprocessor should get before rows share one."""
BUSY_THREADS = 512
"""Threads a multiprocessor should have: few rows get more threads each up to that."""
FLAT_THREADS = 128
"""Threads of a block that takes a piece of a flat domain."""
FLAT_VECTORS = 2
"""Vectors of one of its threads, where all threads of a device have as many. The GELUs of a ViT-B/16 (77 MB read behind
the product that wrote them, 77 MB written) took 37.3 us so, 39.0 with one vector in each of 256 threads (H200)."""
FLAT_THREADS_OF_MULTIPROCESSOR = 256
"""Threads that a multiprocessor should have of a flat kernel before their vectors get longer."""
STEP_ELEMENTS = 16
"""Elements that a thread takes in a step where nothing is kept in registers."""
SHARED_SLACK_BYTES = 256
"""Shared memory left free beside partial results where values are staged there, for the alignment of buffers."""
LEAST_SHARED_RESERVE_BYTES = 1024
"""The least that is left free beside staged values."""
STAGED_CHUNKS = (4, 2, 1)
"""Vectors a thread may take in a step where values are staged in shared memory: those that cover the fewest columns."""

CROWDED_COST = 4.0
"""Cost of each time that tiles exceed ``TILE_REGISTERS``, an idle lane for every busy one being 1."""
SCATTERED_COST = 0.6
"""Cost where a row's threads read nothing side by side."""
SECTOR_BYTES = 64
"""Bytes of a row that threads of a packed block should read side by side: two sectors at a time."""
CHUNK_COST = 0.02
"""Cost of each vector a thread more or less than two, in parts of a warp: one leaves too little in flight."""


def packed_row_cost(vectors: int, threads: int, vector: int, words: float) -> float:
    """What speaks against so many threads, at most a warp, for a row of so many vectors of ``vector`` elements.

    ``words`` are the registers that a column costs a thread.
    """
    chunks = -(-vectors // threads)
    idle = chunks * threads / vectors - 1.0
    crowded = max(0.0, chunks * vector * words / TILE_REGISTERS - 1.0) * CROWDED_COST
    scattered = max(0.0, 1.0 - threads * vector * 4 / SECTOR_BYTES) * SCATTERED_COST
    return idle + crowded + scattered + (CHUNK_COST * abs(chunks - 2) if threads < 32 else 0)


# -- rows over several blocks (task splitting) -----------------------------------------------------------------
SPLIT_COLUMNS = 1024
"""Columns of a row up to which it is never split (AStitch 4.3)."""
SPLIT_GAIN = 0.9
"""A split must bring the estimated time down to this part of what it is without."""
FEWER_BLOCKS_GAIN = 0.97
"""More blocks a row must bring the estimated time of the last choice down to this part: of splits that are about as
good the one of fewest blocks is taken."""
BLOCKS_TO_FILL = 4
"""Blocks a multiprocessor up to which rows without reductions are split: nothing is exchanged."""
LONE_ELEMENT_SECONDS = 12e-12
"""What an element takes longer in each pass when no second block of the multiprocessor fills the pauses: what is
computed then, memory waits for. It was 11 to 20 ps with bfloat16, 2 to 12 with float32 (``scripts/ab_splits.py``)."""
SPILL_SLOWDOWN = 1.5
"""How much longer rows take whose block spills registers."""
STAGED_SLOWDOWN = 1.7
"""How much longer rows take whose block stages them in shared memory, and is the only one of its multiprocessor."""
REGISTER_ROW_BYTES = 48 * 1024
"""What rows read up to which a block's registers are the best place for them, however many rows there are: 32 KiB run
at a copy's speed, 64 KiB at 0.6 to 0.8 of it (``scripts/ab_splits.py``)."""
CACHED_SHARE = 0.2
"""What reading again from the second-level cache costs, reading from memory being 1."""
CACHE_FILL = 0.67
"""The part of the second-level cache up to which what is read again is still there: rows that the blocks at work read
and write. At 0.57 softmax, RMS norm and cross-entropy of bfloat16 were fastest at every length from 32,768 columns, at
0.83 they took 5% longer or more, and at 1.1 nothing was found again (``scripts/ab_splits.py``)."""
CACHED_THREADS = 1024
"""Threads of a multiprocessor that read rows again from the cache: more begin more rows than it holds."""
CACHED_BLOCKS = ((1, 256), (1, 512), (2, 256), (4, 256), (8, 256), (8, 512), (8, 1024))
"""Blocks of a row that is read again from the cache, and their threads: small ones wait for each other less."""
CACHED_CHUNKS = 4
"""Vectors of a thread of such a block in a step."""


def cached_share(filled: float) -> float:
    """What reading again costs where rows at work fill such a part of the second-level cache."""
    beyond = (filled - CACHE_FILL) / (1.0 - CACHE_FILL)
    return CACHED_SHARE + (1.0 - CACHED_SHARE) * min(1.0, max(0.0, beyond))


SPLIT_BLOCK_SHAPES = ((512, 2), (512, 1))
"""Threads of a block and blocks of a multiprocessor, where all blocks of the device share rows."""
STREAMED_WORDS = 24
"""Registers for loads in flight of such a block that keeps nothing in registers."""

CACHES_FILLED = 2
"""Times that what a kernel reads, and what it writes, each fill the second-level cache from which on its inputs are to
last there; at once the cache's size (a transposition of 67 MB with a layer norm) nothing is won."""
LASTING_WORDS = 48
"""Registers of loads of a pass up to which they carry the policy, where they are not copied in the background."""

# -- row domain or phases --------------------------------------------------------------------------------------
IDLE_BLOCK_BYTES = 1 << 20
"""Bytes that a block moves in the time of a few launches: where few blocks have more each, phases are tried."""
PHASES_GAIN = 0.1
"""The part of the bytes that phases must save, by what their blocks retain, against passes that read a row again:
standardizing 67 MB by mean, deviation and maximum fell from 71 to 52 us."""

# -- partition into phases of parts ----------------------------------------------------------------------------
MOST_PHASES = 8
"""Phases of a kernel."""
MOST_STAGES = 48
"""Parts of a kernel."""
SCATTERED_ELEMENTS = 32
"""Elements of a reduction that one thread may as well take in turn, wherever they lie."""
BUSY_RESULTS = 1024
"""Results of a reduction for each block from which on a thread for each keeps the device busy."""
REPLICATED_ROWS = 512
"""Rows of a part that every block may evaluate for itself, in about the time of a barrier."""
REPLICATED_POINTS = 8192
"""Elements that such a part may reduce."""
REPLICATED_VALUES = 16
"""Values that blocks may keep so."""
STAGES_TRIED = 6
"""Parts of a phase that a root without row values of its own is tried on."""

# -- mapping of grid-wide plans --------------------------------------------------------------------------------
GRID_BLOCK_SHAPES = {(512, 1): 0.0, (512, 2): 0.03, (384, 1): 0.05, (256, 1): 0.15, (1024, 1): 0.1}
"""Threads of a block and blocks of a multiprocessor, with what speaks against them: few warps to hide latency, or many
blocks, which make barriers and partial sums dearer. In fractions of the bytes read, as all costs of these mappings."""
VECTORS_IN_FLIGHT = 4
"""Vectors a thread has in flight where nothing else bounds them."""
TILE_CHUNKS = 2
"""Vectors of a thread in a tile of columns that has blocks of its own."""
CACHED_INPUT_BYTES = 1 << 22
"""Inputs smaller than this stay in the second-level cache whatever the order of tasks."""
BUSY_ELEMENTS = 16
"""Elements a thread from which on idle lanes count in full; they matter as far as there is work for all."""
SPILLED_COST = 2.0
"""Cost of tiles that exceed a thread's registers at all; how many times they do comes besides."""
LINE_BYTES = 128
"""Bytes of a row that threads should read side by side: a line of the cache."""
TILE_LINE_BYTES = 512
"""The same for a tile of columns, of which blocks far apart read the rest."""
TILE_SCATTERED_COST = 0.3
"""Cost where threads of such a tile read nothing side by side."""
TILE_ROWS_COST = 0.001
"""Cost of each row of a tile that a block has at once: their sums are combined in the end."""
BLOCK_REDUCTION_COST = 0.2
"""Cost of rows that several warps reduce together: barriers of the block."""
WARP_REDUCTION_COST = 0.02
"""Cost of each doubling of these warps."""
IDLE_DEVICE_COST = 0.5
"""Cost of a part whose blocks leave the whole device idle."""
TURNS_OF_LATENCY = 8
"""Vectors that a thread takes one after the other in about the time that the first one takes to come."""


def tile_cost(idle: float, threads: int, vector: int, rows: float) -> float:
    """What speaks against threads for a tile of columns; ``idle`` is the fraction of idle lanes, ``rows`` a block's."""
    scattered = max(0.0, 1.0 - threads * vector * 4 / TILE_LINE_BYTES) * TILE_SCATTERED_COST
    return idle + scattered + TILE_ROWS_COST * rows


def row_cost(idle: float, work: float, over: float, threads: int, vector: int) -> float:
    """What speaks against threads for a row's columns.

    Args:
        idle: the fraction of idle lanes, which counts as far as there is ``work`` for all (0 to 1).
        work: see ``idle``.
        over: how many times more registers than there are the tiles take, 0 where they fit.
        threads: of a row.
        vector: elements of 4 bytes that each loads at once.
    """
    scattered = max(0.0, 1.0 - threads * vector * 4 / LINE_BYTES) * SCATTERED_COST
    return idle * work + (SPILLED_COST + over if over else 0.0) + scattered


def reduction_cost(warps: int) -> float:
    """What speaks against rows that so many warps reduce together."""
    return BLOCK_REDUCTION_COST + WARP_REDUCTION_COST * warps.bit_length()


def idle_device_cost(busy: float, turns: float, least: float) -> float:
    """What speaks against a part with fewer groups of rows than multiprocessors.

    Args:
        busy: the fraction of multiprocessors with a group.
        turns: vectors that a thread takes one after the other.
        least: the same if all of the device shared the part.
    """
    longer = (max(1.0, turns) + TURNS_OF_LATENCY) / (max(1.0, least) + TURNS_OF_LATENCY) - 1.0
    return max((1.0 - busy) * IDLE_DEVICE_COST, longer)


# -- retention between phases ----------------------------------------------------------------------------------
RETAINED_IN_REGISTERS = 14
"""Tasks kept in registers at most: the code of each stands in the kernel by itself."""
RETAINED_SHARE = ((4, 0.65), (5, 0.5))
"""The part of the registers that no tile needs which may hold what is kept, in kernels of up to so many phases.

The rest is for addresses and the like, of which kernels of many phases have more: with these figures no kernel tried
spilled, and with 0.75, or any in kernels of seven phases, some did.
"""
RETAINED_SLACK_BYTES = 1024
"""Shared memory left free beside what is kept, for the alignment of buffers."""
RETAINED_ADDRESSES = 12
"""Registers for each input more that is kept."""

# -- CPU: tasks and lanes --------------------------------------------------------------------------------------
CPU_LANES = 32
"""Elements of a piece: four AVX2 registers, enough for one accumulator to hide the latency of an addition."""
SHORT_LANES, SHORTEST_LANES = 16, 8
"""Lengths of pieces where a row has fewer elements: no vectors below the second."""
LIGHT_NS, HEAVY_NS, ACCESS_NS = 0.12, 0.9, 0.25
"""Rough cost of an element in nanoseconds: of a light operator, of a heavy one, of a load or store."""
ROW_NS, LEAST_NS = 20.0, 0.1
"""Cost of a row besides its elements, and the least of anything."""
PARALLEL_NS = 30_000.0
"""Work from which a parallel region (10 to 15 us) pays."""
TASK_NS = 20_000.0
"""Work of a task."""
TASK_ROWS = 64
"""Rows of a task at most."""
TASKS_A_CORE = 4
"""Tasks of a core at least, where there are rows for them."""
PIECES_A_CORE = 2
"""Tasks of a core where these divide columns, or strips of rows."""
TASK_ELEMENTS = 1024
"""Elements by whose multiples flat domains are divided into tasks."""
STRIP_BYTES = 256 * 1024
"""What a strip of rows may keep between passes (half of a core's second-level cache)."""
STRIP_PIECES = 8
"""Pieces of rows in a strip at most."""
CPU_CUTS = 8
"""Parts of a segment, each with code of its own; with more, conditions are evaluated element by element."""
SHORTEST_SEGMENT = 8
"""Elements of the shortest segment that fills a vector."""
GATHERED_COLUMNS = 32
"""Columns from which vectors with gathered elements are better than short segments."""


def element_ns(heavy: int, light: int, accesses: int) -> float:
    """Nanoseconds of an element on a core, of which so many operators and accesses are evaluated."""
    return HEAVY_NS * heavy + LIGHT_NS * light + ACCESS_NS * accesses


# -- code generation -------------------------------------------------------------------------------------------
PARTS_IN_ORDER = 8
"""Partial results of other warps or blocks up to which every thread folds them one after the other."""
BOUND_WEIGHT = 12
"""Nodes of a light expression from which on it is computed once, into a cell, and not wherever it is used."""
NESTED_LETS = 16
"""Let expressions within each other: several of TVM's passes visit a body twice (20 take seconds)."""
STRIDED_SEGMENTS_TOGETHER = 16
"""Segments whose strided accesses are made together: their neighbours share cache lines."""
COLUMNS_TOGETHER = 8
"""Columns that a piece of rows takes in one go, so that its accumulators stay in registers meanwhile."""
