# SPDX-License-Identifier: Apache-2.0
"""Constants of grid-wide plans: phases, stages, shapes of blocks, values that blocks retain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GridChoices:
    """Constants of grid-wide plans: phases, stages, shapes of blocks, values that blocks retain."""

    # -- row domain or phases ------------------------------------------------------------------------------------------
    idle_block_bytes: int = 1 << 20
    """Bytes that a block moves in the time of a few launches. If few blocks have more bytes each, phases are
    tried."""
    phases_gain: float = 0.1
    """The share of the bytes that phases must save by retention, compared to passes that read a row again.
    Standardizing 67 MB by mean, deviation and maximum fell from 71 to 52 us."""

    # -- partition into phases of stages -------------------------------------------------------------------------------
    most_phases: int = 8
    """Most phases of a kernel."""
    most_stages: int = 48
    """Most stages of a kernel."""
    uncoalesced_elements: int = 32
    """Elements of a reduction up to which one thread may take them one after the other, wherever they lie."""
    busy_results: int = 1024
    """Results of a reduction for each block from which on a thread for each keeps the device busy."""
    replicated_rows: int = 512
    """Most rows of a stage that every block may evaluate, in about the time of a barrier."""
    replicated_points: int = 8192
    """Most elements that such a stage may reduce."""
    replicated_operands: int = 32768
    """The same in a kernel of products of few rows, whose weights would wait for another kernel. Not measured."""
    replicated_bytes: int = 40 * 1024
    """Most bytes of the results of such stages in a block's static shared memory, which ends at 48 KiB. Eight rows of
    2,048 columns of a half type take 32 KiB."""
    replicated_values: int = 16
    """Most values of such stages that blocks may keep."""
    stored_share: int = 8
    """Elements of a reader for each element of a costly value from which on a stage stores the value for it."""
    stages_tried: int = 6
    """Stages of a phase that a root without row values of its own is tried on."""

    # -- mapping of grid-wide plans ------------------------------------------------------------------------------------
    grid_block_shapes: tuple[tuple[int, int, float], ...] = (
        (512, 1, 0.0),
        (512, 2, 0.03),
        (384, 1, 0.05),
        (256, 1, 0.15),
        (1024, 1, 0.1),
    )
    """Threads of a block and blocks of a multiprocessor, with their cost. Few warps hide less latency, and many
    blocks make barriers and partial sums dearer. As all costs of these mappings, it is a fraction of the bytes
    read."""
    vectors_in_flight: int = 4
    """Vectors that a thread has in flight if nothing else bounds them."""
    tile_chunks: int = 2
    """Vectors of a thread in a tile of columns that has blocks of its own."""
    cached_input_bytes: int = 1 << 22
    """Inputs smaller than this stay in the second-level cache in any order of tasks."""
    busy_elements: int = 16
    """Elements of a thread from which on idle lanes count in full. With fewer elements they count in proportion."""
    spilled_cost: float = 2.0
    """Cost of tiles that exceed a thread's registers at all. The factor by which they exceed them is added."""
    line_bytes: int = 128
    """Bytes of a row that neighbouring threads should read together: a line of the cache."""
    tile_line_bytes: int = 512
    """The same for a tile of columns. Blocks far apart read the other columns of a row."""
    tile_uncoalesced_cost: float = 0.3
    """Cost if threads of such a tile read nothing side by side."""
    tile_rows_cost: float = 0.001
    """Cost of each row of a tile that a block has at once: their sums are combined in the end."""
    block_reduction_cost: float = 0.2
    """Cost of rows that several warps reduce together: barriers of the block."""
    warp_reduction_cost: float = 0.02
    """Cost of each doubling of these warps."""
    idle_device_cost: float = 0.5
    """Cost of a stage whose blocks leave the whole device idle."""
    steps_of_latency: int = 8
    """Vectors that a thread takes one after the other in about the time that the first one takes to come."""

    # -- retention between phases --------------------------------------------------------------------------------------
    retained_in_registers: int = 14
    """Most tasks kept in registers: the kernel has code of its own for each."""
    retained_share: tuple[tuple[int, float], ...] = ((4, 0.65), (5, 0.5))
    """The share of the registers free of tiles that may hold kept values, in kernels of up to so many phases.

    The rest is for addresses and similar values, of which kernels of many phases have more. With these figures no
    tried kernel spilled. With 0.75, or with any share in kernels of seven phases, some spilled.
    """
    retained_slack_bytes: int = 1024
    """Shared memory left free in addition to kept values, for the alignment of buffers."""
    retained_addresses: int = 12
    """Registers for each further input that is kept."""
