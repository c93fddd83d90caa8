# SPDX-License-Identifier: Apache-2.0
"""A thread mapping on a GPU: rows over blocks, columns over threads, and the storage of values between passes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...graph.extent import ByExtent, Extent, text_of
from ..iteration.loops import Leaf
from ..rows.matrix_units import MatrixUnits


class CrossBlockReduction(enum.Enum):
    """The method by which the blocks that share a row combine their partial results."""

    NONE = "none"
    CLUSTER = "distributed shared memory"
    GRID = "device memory and a grid barrier"


@dataclass(frozen=True)
class ColumnMapping:
    """The distribution of a column space over a block: ((step * chunks + chunk) * threads + lane) * vector + element.

    The formula gives the column itself, or its position in the block's segment if a row has several. Rows of symbolic
    length have as many steps as it takes, or one step that they are known to fit in.
    """

    vector: int
    chunks: int
    steps: Extent = 1


def _steps(m: ColumnMapping) -> str:
    return f"{m.steps} steps" if isinstance(m.steps, int) else "as many steps as it takes"


class Storage(enum.Enum):
    """The storage of values between the passes over a row."""

    REGISTERS = "kept in registers"
    SHARED = "kept in shared memory"
    CACHE = "read again from the second-level cache"
    STEPS = "kept for a step: all reductions are taken in one sweep"
    NOWHERE = "read again"


@dataclass(frozen=True)
class RowMapping:
    """Rows over blocks and threads over a row's columns.

    ``threads`` handle one row together, ``rows_per_block`` rows share a block (horizontal packing). A block takes
    ``tasks`` such groups of rows in order (vertical packing). ``columns`` maps each column space. ``split`` spreads a
    flat domain's columns over blocks instead. ``storage`` says where values stay between passes.

    ``row_splits`` blocks share a row (task splitting): block ``row * row_splits + split`` takes a contiguous slice of
    the row's columns. ``exchange`` combines their reductions. ``blocks_per_sm`` blocks of a multiprocessor are
    resident at once, which the kernel's launch bounds enforce (0: no bound).

    ``async_copies``: cp.async stages the inputs that stay in shared memory, without registers.

    ``transposed`` are inputs whose neighbouring rows, not columns, are neighbours in memory. Neighbouring threads
    load neighbouring rows of a block, and the block transposes them in shared memory.

    ``workers`` are persistent blocks, or persistent clusters of ``row_splits`` blocks. Each takes every
    ``workers``-th group of rows, up to ``tasks`` groups. It copies the next group's patches in the background
    meanwhile. With 0 every group has blocks of its own.

    ``weights`` are the inputs that the rows of a product read, each with the neighbouring columns that read the same
    element: 8 of a word that packs 8 integers. ``sums`` are a thread's accumulators of a reduction. With 0 it has one
    for each element of a vector. ``matrix`` says how matrix units take the sums, if they do. Else ``by_lanes`` is the
    reason why lanes multiply.
    """

    threads: int
    rows_per_block: int
    columns: ByExtent[ColumnMapping] = field(default_factory=ByExtent)
    split: bool = False
    storage: Storage = Storage.REGISTERS
    tasks: int = 1
    row_splits: int = 1
    exchange: CrossBlockReduction = CrossBlockReduction.NONE
    blocks_per_sm: int = 0
    async_copies: bool = False
    transposed: tuple[Leaf, ...] = ()
    workers: int = 0
    weights: Mapping[Leaf, int] = field(default_factory=dict)
    sums: int = 0
    matrix: MatrixUnits | None = None
    by_lanes: str = ""

    @property
    def keep(self) -> bool:
        """True if values stay in their block between passes. Otherwise their inputs are read again."""
        return self.storage in (Storage.REGISTERS, Storage.SHARED)

    @property
    def shared(self) -> bool:
        """True if values stay in shared memory."""
        return self.storage is Storage.SHARED

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.threads * self.rows_per_block

    @property
    def warps(self) -> int:
        """Warps of a row in a block, 1 if rows share a warp."""
        return max(1, self.threads // 32)

    @property
    def spaces(self) -> dict[str, str]:
        """Descriptions of all column spaces."""
        return {
            text_of(e): f"vectors of {m.vector} x {m.chunks} x {_steps(m)}" for e, m in self.columns.items()
        }

    @property
    def iterations(self) -> int:
        """The most groups of rows that a persistent block takes, 1 for blocks that end."""
        return self.tasks if self.workers else 1

    @property
    def sums_taken(self) -> str:
        """A short text about the sums of a product of few rows, for ``explain``. It is empty for other rows."""
        if self.matrix is not None:
            return f"by {self.matrix.describe()}"
        return f"by lanes: {self.by_lanes}" if self.by_lanes else ""

    @property
    def shares_rows(self) -> bool:
        """True if several warps share a row's slice and wait for each other at reductions."""
        return self.threads > 32 or self.exchange is not CrossBlockReduction.NONE

    def describe(self) -> dict[str, object]:
        """Return the mapping as plain data, for ``explain``."""
        transposed = [tensor.name for tensor, _ in self.transposed]
        return {
            "threads a row": self.threads,
            "rows a block": self.rows_per_block,
            "block": self.block,
            "tasks a block": self.tasks,
            "columns": self.spaces,
            "between passes": self.storage.value,
            "blocks a row": self.row_splits,
            "exchange": self.exchange.value,
            "columns over blocks": self.split,
            **({"loads": "copied in the background"} if self.async_copies else {}),
            **({"transposed in shared memory": transposed} if transposed else {}),
            **({"persistent workers": self.workers} if self.workers else {}),
            **({"sums": self.sums_taken} if self.sums_taken else {}),
        }

    def block_columns(self, columns: Extent) -> int:
        """Return the columns of a row that a block covers, those past the row's end included. Steps must be static."""
        m = self.of(columns)
        assert isinstance(m.steps, int), "nothing is kept of rows of any length"
        return m.steps * m.chunks * self.threads * m.vector

    def covered(self, columns: Extent) -> int:
        """Return the columns that all blocks of a row cover, those past its end included."""
        return self.row_splits * self.block_columns(columns)

    def of(self, columns: Extent) -> ColumnMapping:
        """Return the mapping of a column space."""
        return self.columns[columns]
