# SPDX-License-Identifier: Apache-2.0
"""The layout of a block's shared memory: buffers with their names and sizes, patches, slots of an exchange.

The planner fills these classes once, when a plan is complete (:mod:`.shared_memory`). Code generation declares the
buffers that it finds here and works out none of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..graph.dtype import item_bytes
from ..graph.ir import Operator
from .iteration.alignment import Key
from .iteration.loops import Leaf


@dataclass(frozen=True)
class SharedBuffer:
    """A buffer of ``elements`` elements in a block's dynamic shared memory, with ``unused`` bytes behind them.

    The unused bytes are the plan's padding (:class:`SharedMemory`).
    """

    name: str
    elements: int
    dtype: str
    unused: int = 0

    @property
    def bytes(self) -> int:
        """Bytes that are used."""
        return self.elements * item_bytes(self.dtype)


@dataclass(frozen=True)
class WeightRing:
    """The ring in which weights of products on matrix units arrive (``plan/rows/weight_ring``).

    All stages share one buffer, with their factors in front of the ring. A copy for the next stage begins while a stage
    is computed, so TVM cannot merge buffers of their own.

    Attributes:
        start: the bytes of the factors in front of it.
        bytes: its own bytes.
        dtype: the type of the factors.
    """

    start: int
    bytes: int
    dtype: str

    @property
    def buffer(self) -> SharedBuffer:
        """The buffer of factors and ring, without padding."""
        return SharedBuffer("weights", (self.start + self.bytes) // item_bytes(self.dtype), self.dtype)


@dataclass(frozen=True)
class SharedMemory:
    """Bytes of shared memory of a block.

    ``static`` and ``dynamic`` bytes are used. Dynamic shared memory is allocated with ``padding`` further bytes.
    TVM's runtime compares dynamic memory alone with the limit from which a driver must be asked for more.
    """

    static: int = 0
    dynamic: int = 0
    padding: int = 0


@dataclass(frozen=True)
class LoadedPatch:
    """A patch of a transposed input that threads load and store row by row, ``pitch`` elements from row to row.

    A thread has ``loads_at_once`` loads in flight, which divide its columns.
    """

    buffer: SharedBuffer
    pitch: int
    loads_at_once: int


@dataclass(frozen=True)
class Pieces:
    """The layout of a patch that cp.async fills.

    ``rows`` neighbouring rows are a piece, ``column`` pieces a column. Piece number ``n`` of the patch lies at position
    ``n ^ (column // vector % positions)``.
    """

    rows: int
    column: int
    positions: int


@dataclass(frozen=True)
class CopiedPatch:
    """A patch of a transposed input that cp.async fills, in ``pieces``.

    The threads of a block copy one piece each of ``columns_at_once`` columns. Each thread begins ``copies`` copies
    for a group of rows, ``early`` of them before it evaluates the preceding group.
    """

    buffer: SharedBuffer
    pieces: Pieces
    columns_at_once: int
    copies: int
    early: int

    @property
    def piece_bytes(self) -> int:
        """Bytes that one cp.async copies."""
        return self.pieces.rows * item_bytes(self.buffer.dtype)


@dataclass(frozen=True)
class ClusterSlots:
    """Shared memory of each block of a cluster, into which the blocks write partial results of a row.

    Every group of rows (``iteration``) of a block, row, reduction, block of the cluster and warp has a slot of ``bits``
    bits. Every turn and level has a barrier of 64 bits. ``position`` numbers the reductions, ``level`` gives the
    level of each.
    """

    iterations: int
    rows: int
    blocks: int
    warps: int
    bits: int
    position: Mapping[Operator, int]
    level: Mapping[Operator, int]

    @property
    def partials(self) -> int:
        """Partial results of one row and reduction."""
        return self.blocks * self.warps

    @property
    def levels(self) -> int:
        """Levels of reductions, each exchanged at once."""
        return max(self.level.values(), default=-1) + 1

    @property
    def reduction_bytes(self) -> int:
        """Bytes of one row's slots for one reduction."""
        return self.partials * self.bits // 8

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's slots."""
        return len(self.position) * self.reduction_bytes

    @property
    def iteration_bytes(self) -> int:
        """Bytes of the slots of one turn."""
        return self.rows * self.row_bytes

    @property
    def barrier_count(self) -> int:
        """Barriers of all turns."""
        return self.iterations * self.levels

    @property
    def bytes(self) -> int:
        """Bytes of all slots and barriers."""
        return self.iterations * self.iteration_bytes + 8 * self.barrier_count


@dataclass(frozen=True)
class StageLayout:
    """The shared memory of one stage.

    Attributes:
        loaded_patches: patches of transposed inputs that threads load. They use the same memory one after the other.
        copied_patches: patches of transposed inputs that cp.async fills.
        shared_columns: inputs with one element for each column, which a persistent block keeps for all of its rows.
        copies: inputs that cp.async stages, in the order in which copies begin.
        staged: values, and inputs that cp.async does not stage, which stay in shared memory between passes.
        slots: the slots in which the blocks of a cluster exchange partial results.
        column_sums: the buffers in which the rows of a block add up reductions across rows, one for each reduction.
        matrix: the factors of a product on matrix units, and the partial sums of warps, in elements of the factors.
    """

    loaded_patches: Mapping[Leaf, LoadedPatch] = field(default_factory=dict)
    copied_patches: Mapping[Leaf, CopiedPatch] = field(default_factory=dict)
    shared_columns: Mapping[Leaf, SharedBuffer] = field(default_factory=dict)
    copies: Mapping[Leaf, SharedBuffer] = field(default_factory=dict)
    staged: Mapping[Key | Leaf, SharedBuffer] = field(default_factory=dict)
    slots: ClusterSlots | None = None
    column_sums: Mapping[Operator, SharedBuffer] = field(default_factory=dict)
    matrix: SharedBuffer | None = None

    @property
    def buffers(self) -> list[SharedBuffer]:
        """All buffers in dynamic shared memory."""
        return [
            *(patch.buffer for patch in self.loaded_patches.values()),
            *(patch.buffer for patch in self.copied_patches.values()),
            *self.shared_columns.values(),
            *self.copies.values(),
            *self.staged.values(),
            *self.column_sums.values(),
            *([] if self.matrix is None else [self.matrix]),
        ]
