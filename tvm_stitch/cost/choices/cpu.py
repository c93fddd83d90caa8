# SPDX-License-Identifier: Apache-2.0
"""Constants of stitch ops on CPUs: tasks, lanes, and the cost of an element."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CpuChoices:
    """Constants of stitch ops on CPUs: tasks, lanes, and the cost of an element."""

    # -- CPU: tasks and lanes ------------------------------------------------------------------------------------------
    cpu_lanes: int = 32
    """Elements of a piece: four AVX2 registers, enough for one accumulator to hide the latency of an addition."""
    short_lanes: int = 16
    shortest_lanes: int = 8
    """Lengths of pieces if a row has fewer elements. Pieces below the second length have no vectors."""
    light_ns: float = 0.12
    heavy_ns: float = 0.9
    access_ns: float = 0.25
    """Approximate cost of an element in nanoseconds: of a light operator, of a heavy one, of a load or store."""
    shared_ns: float = 0.5
    """Cost of an element's values that all segments share, from which on a block of segments computes them once."""
    most_gathers: int = 4
    """Elements at computed positions that a lane reads, from which on vectors are short: each is code for each lane."""
    row_ns: float = 20.0
    least_ns: float = 0.1
    """Cost of a row in addition to its elements, and the least cost of anything."""
    parallel_ns: float = 30_000.0
    """Work from which on a parallel region (10 to 15 us) pays."""
    task_ns: float = 20_000.0
    """Work of a task."""
    task_rows: int = 64
    """Most rows of a task."""
    tasks_per_core: int = 4
    """Fewest tasks of a core, if there are enough rows."""
    pieces_per_core: int = 2
    """Tasks of a core if tasks divide columns, or strips of rows."""
    task_elements: int = 1024
    """Elements by whose multiples flat domains are divided into tasks."""
    strip_bytes: int = 256 * 1024
    """Bytes of a strip of rows that passes may keep (half of a core's second-level cache)."""
    strip_pieces: int = 8
    """Most pieces of rows in a strip."""
    cpu_cuts: int = 8
    """Most slices of a segment, each with code of its own. With more, conditions are evaluated element by element."""
    shortest_segment: int = 8
    """Elements of the shortest segment that fills a vector."""
    gathered_columns: int = 32
    """Columns from which vectors with gathered elements are better than short segments."""

    # -- CPU: rows of weights ------------------------------------------------------------------------------------------
    weight_group: int = 512
    """Most neighbouring columns that are recognised to share an element of an input, such as a scale."""
    sums_share: float = 0.75
    """Share of the vector registers that partial sums may take."""
    blocked_factors: int = 4
    """Fewest rows of a product whose columns are walked in blocks, if the first-level cache does not hold the rows."""
    block_bytes: int = 24 * 1024
    """Bytes of the product's rows in a block."""
    blocked_rows: int = 64
    """Most rows of the domain in a task that walks blocks. Their partial sums lie in memory between blocks."""
    scaled_sums: int = 8
    """Most sums of a row that are scaled group by group. With more, each weight is scaled once for all of them."""
    weight_ns: float = 0.1
    """Approximate cost of a product with a weight in nanoseconds, from memory."""
    cpu_dense_rows: int = 8
    """Most rows of a product with a weight of a half type that is a sum over its rows. One core of a Xeon took
    1.24, 1.55 and 7.4 ms for one, four and sixteen rows by 4,096 x 4,096 bfloat16 weights. The template took 1.34, 1.83
    and 7.0 ms. With float32 weights it is as fast."""
    cpu_dense_rows_of_pairs: int = 1
    """The same for bfloat16 if the CPU multiplies pairs of it. One core of a Zen 4 multiplied two, four and eight rows
    by 4,096 x 4,096 weights. The template took 1.2, 1.5 and 1.8 ms, sums over rows 1.6, 1.9 and 3.8 ms. One row of a
    Llama-like decoder of 8 layers took 28.2 ms in templates, and 27.1 as sums over rows."""
    cpu_dense_bytes: int = 1 << 18
    """Fewest bytes of such a weight. A cache of a core holds smaller ones, so that nothing waits for memory."""
