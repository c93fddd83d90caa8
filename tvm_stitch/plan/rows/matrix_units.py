# SPDX-License-Identifier: Apache-2.0
"""Sums of a product of few rows on matrix units: which lane has which weights, factors and sums.

A warp multiplies 16 rows of weights (``mma``'s first operand) by up to 8 columns. Four lanes share a row, and a lane
loads ``lane_columns`` neighbouring weights of two rows at once. So the columns of a *chunk* of four lanes may belong to
several groups, each with a scale of its own. Then each group has a column of the second operand, which is zero at the
other groups' weights. The sums of groups stay apart, and each is multiplied by its scale once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ...graph.ir import Operator
from ..iteration.alignment import Key
from ..iteration.loops import Leaf, RowLoop
from .fields import PackedWeight


@dataclass(frozen=True)
class MatrixUnits:
    """The sums of a pass on matrix units.

    Attributes:
        mma_rows, mma_columns: the rows and columns of an ``mma``'s result. The rows are those of weights.
        row_lanes: the lanes of a warp that share a row.
        octet: the elements of a factor that a lane reads at once, for two ``mma``.
        sums: the pass.
        factors: the rows that are multiplied by the weights, as values or inputs of a half type at their points.
        dtype: of the factors.
        weights: of each product, the weights of its neighbouring rows.
        results: the sum of each factor and each weight, by ``(factor, product, neighbour)``.
        lane_bytes: bytes of a row of weights that a lane loads at once.
        slices: warps that share rows of weights. Each has neighbouring chunks.
        chunks: chunks that a warp has in flight.
        steps: times that a warp loads so many.
        per_scale: chunks whose sums are multiplied by a scale at once, or 0 without scales.
        factors_in_flight: the octets of factors that a thread loads before it stores the first one.
        ahead: the chunks of each warp that are fetched before the barrier that the stage is behind.
        ring: the steps whose weights shared memory holds, on their way or arrived (``plan/rows/weight_ring``). Without
            a ring (0) weights are loaded into registers.
    """

    mma_rows: ClassVar[int] = 16
    mma_columns: ClassVar[int] = 8
    row_lanes: ClassVar[int] = 4
    octet: ClassVar[int] = 8

    sums: RowLoop
    factors: tuple[Key | Leaf, ...]
    dtype: str
    weights: tuple[tuple[PackedWeight, ...], ...] = field(repr=False)
    results: tuple[tuple[tuple[Operator, ...], ...], ...] = field(repr=False)
    lane_bytes: int
    slices: int
    chunks: int
    steps: int
    per_scale: int
    factors_in_flight: int = 1
    ahead: int = 0
    ring: int = 0

    @property
    def columns(self) -> int:
        """The columns of a row of weights."""
        return int(self.sums.columns)

    @property
    def packed(self) -> PackedWeight:
        """The first weight, whose bits, zero point and group are those of all."""
        return self.weights[0][0]

    @property
    def width(self) -> int:
        """The neighbouring rows of weights of a product that one row of the domain has."""
        return len(self.weights[0])

    @property
    def tile_rows(self) -> int:
        """The rows of the domain of a warp."""
        return self.mma_rows // (self.width * len(self.weights))

    @property
    def lane_columns(self) -> int:
        """The neighbouring columns that a lane loads at once."""
        return 8 * self.lane_bytes // self.packed.bits

    @property
    def chunk_columns(self) -> int:
        """The columns of a chunk."""
        return self.row_lanes * self.lane_columns

    @property
    def row_chunks(self) -> int:
        """The chunks of a row."""
        return self.columns // self.chunk_columns

    @property
    def covered_chunks(self) -> int:
        """The chunks of all slices. Those past the row's end are multiplied by zero."""
        return self.slices * self.steps * self.chunks

    @property
    def groups(self) -> int:
        """The groups of a chunk that lanes multiply at the same time, each with a scale of its own."""
        if self.packed.scale is None:
            return 1
        return min(self.row_lanes, max(1, self.chunk_columns // self.packed.group))

    @property
    def parts(self) -> int:
        """The groups of a lane's columns of a chunk, which it multiplies one after the other."""
        return max(1, self.lane_columns // self.packed.group) if self.packed.scale is not None else 1

    @property
    def tiles(self) -> int:
        """The ``mma`` by which a warp multiplies the same weights, for all factors and groups."""
        return -(-len(self.factors) * self.groups // self.mma_columns)

    @property
    def stored_factors(self) -> int:
        """The rows of factors in shared memory, with rows of zeros behind if there are several tiles."""
        whole = self.mma_columns // self.groups
        return len(self.factors) if self.tiles == 1 else self.tiles * whole

    @property
    def factor_elements(self) -> int:
        """The elements of all factors in shared memory, and an octet of zeros."""
        return self.stored_factors * self.covered_chunks * self.chunk_columns + self.octet

    def result_elements(self, warps: int) -> int:
        """Return the elements of the partial sums of a block's warps."""
        return warps * self.mma_rows * len(self.factors)

    def shared_bytes(self, warps: int) -> int:
        """Return the bytes of a block's shared memory."""
        return 4 * self.result_elements(warps) + 2 * self.factor_elements

    @property
    def step_bytes(self) -> int:
        """The bytes of weights that a lane multiplies in a step: those of two rows."""
        return 2 * self.chunks * self.lane_bytes

    def ring_bytes(self, threads: int) -> int:
        """Return the bytes of shared memory of a block's ring."""
        return self.ring * self.step_bytes * threads

    def position(self, column: int) -> int:
        """Return the position of a column in its lane's part of a chunk.

        A word's fields are taken in pairs that are half a word apart, by one mask.
        """
        each = max(1, 32 // self.packed.bits)
        if each < self.octet:
            return column
        word, number = divmod(column, each)
        return word * each + 2 * (number % (each // 2)) + number // (each // 2)

    def describe(self) -> str:
        """Return a short text, for ``explain``."""
        kind = f"{self.packed.bits}-bit weights" if self.packed.bits < 16 else f"{self.dtype} weights"
        return (
            f"matrix units, {kind}, {self.slices} warps a tile, {self.chunks} x {self.steps} chunks of "
            f"{self.chunk_columns} columns in {self.groups * self.parts} groups"
            + (f", a ring of {self.ring} steps" if self.ring else "")
        )
