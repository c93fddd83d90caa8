# SPDX-License-Identifier: Apache-2.0
"""Constants of grid-wide plans: phases, stages, shapes of blocks, values that blocks retain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GridChoices:
    """Constants of grid-wide plans: phases, stages, shapes of blocks, values that blocks retain."""

    # -- row domain or phases ------------------------------------------------------------------------------------------
    idle_block_bytes: int = 1 << 20
    """Bytes that a block moves in the time of a few launches: where few blocks have more each, phases are tried."""
    phases_gain: float = 0.1
    """The part of the bytes that phases must save, by what their blocks retain, against passes that read a row again:
    standardizing 67 MB by mean, deviation and maximum fell from 71 to 52 us."""

    # -- partition into phases of parts --------------------------------------------------------------------------------
    most_phases: int = 8
    """Phases of a kernel."""
    most_stages: int = 48
    """Parts of a kernel."""
    uncoalesced_elements: int = 32
    """Elements of a reduction that one thread may as well take in turn, wherever they lie."""
    busy_results: int = 1024
    """Results of a reduction for each block from which on a thread for each keeps the device busy."""
    replicated_rows: int = 512
    """Rows of a part that every block may evaluate for itself, in about the time of a barrier."""
    replicated_points: int = 8192
    """Elements that such a part may reduce."""
    replicated_values: int = 16
    """Values that blocks may keep so."""
    stages_tried: int = 6
    """Parts of a phase that a root without row values of its own is tried on."""

    # -- mapping of grid-wide plans ------------------------------------------------------------------------------------
    grid_block_shapes: tuple[tuple[int, int, float], ...] = (
        (512, 1, 0.0),
        (512, 2, 0.03),
        (384, 1, 0.05),
        (256, 1, 0.15),
        (1024, 1, 0.1),
    )
    """Threads of a block and blocks of a multiprocessor, with what speaks against them: few warps to hide latency, or
    many blocks, which make barriers and partial sums dearer. In fractions of the bytes read, as all costs of these
    mappings."""
    vectors_in_flight: int = 4
    """Vectors a thread has in flight where nothing else bounds them."""
    tile_chunks: int = 2
    """Vectors of a thread in a tile of columns that has blocks of its own."""
    cached_input_bytes: int = 1 << 22
    """Inputs smaller than this stay in the second-level cache whatever the order of tasks."""
    busy_elements: int = 16
    """Elements a thread from which on idle lanes count in full; they matter as far as there is work for all."""
    spilled_cost: float = 2.0
    """Cost of tiles that exceed a thread's registers at all; how many times they do comes besides."""
    line_bytes: int = 128
    """Bytes of a row that threads should read side by side: a line of the cache."""
    tile_line_bytes: int = 512
    """The same for a tile of columns, of which blocks far apart read the rest."""
    tile_uncoalesced_cost: float = 0.3
    """Cost where threads of such a tile read nothing side by side."""
    tile_rows_cost: float = 0.001
    """Cost of each row of a tile that a block has at once: their sums are combined in the end."""
    block_reduction_cost: float = 0.2
    """Cost of rows that several warps reduce together: barriers of the block."""
    warp_reduction_cost: float = 0.02
    """Cost of each doubling of these warps."""
    idle_device_cost: float = 0.5
    """Cost of a part whose blocks leave the whole device idle."""
    turns_of_latency: int = 8
    """Vectors that a thread takes one after the other in about the time that the first one takes to come."""

    # -- retention between phases --------------------------------------------------------------------------------------
    retained_in_registers: int = 14
    """Tasks kept in registers at most: the code of each stands in the kernel by itself."""
    retained_share: tuple[tuple[int, float], ...] = ((4, 0.65), (5, 0.5))
    """The part of the registers that no tile needs which may hold what is kept, in kernels of up to so many phases.

    The rest is for addresses and the like, of which kernels of many phases have more: with these figures no kernel
    tried spilled, and with 0.75, or any in kernels of seven phases, some did.
    """
    retained_slack_bytes: int = 1024
    """Shared memory left free beside what is kept, for the alignment of buffers."""
    retained_addresses: int = 12
    """Registers for each input more that is kept."""
