# SPDX-License-Identifier: Apache-2.0
"""The division of a recurrent layer on a GPU: blocks of a cluster, lanes of a unit, and where weights stay."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...support.failures import Refusal
from .cell import Cell

WARP = 32
VECTOR = 4
"""Neighbouring weights of a lane's piece."""
TYPES = ("float16", "bfloat16", "float32")
"""Types of the weights and states in memory."""
BARRIERS = 32
"""Bytes of a block's barriers at the begin of its shared memory."""


@dataclass(frozen=True)
class Division:
    """The division of a recurrent layer on a GPU.

    A group of lanes computes one hidden unit at a time, in as many turns as it has units. A lane has pieces of
    ``VECTOR`` neighbouring weights of each gate and unit.

    Attributes:
        blocks: blocks of a cluster, which divide the hidden units. A power of two.
        units: hidden units of a block. The last blocks may have fewer.
        warps: warps of a block.
        lanes: lanes of a group. A power of two.
        own: turns of a group whose weights stay in registers.
        kept: pieces of each other turn's weights that stay in shared memory. Others are read in each step.
        rows: most rows of the batch that a cluster computes.
        clusters: clusters that run at once. Fewer rows than these have a cluster each.
        together: rows that are multiplied at once by weights in registers: 2 or 4.
        at_once: rows that are multiplied at once by other weights: 2, 4 or 8.
    """

    blocks: int
    units: int
    warps: int
    lanes: int
    own: int
    kept: int
    rows: int
    clusters: int
    together: int
    at_once: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps

    @property
    def turns(self) -> int:
        """Units of a group."""
        return -(-self.units // (self.threads // self.lanes))

    @property
    def units_of_warp(self) -> int:
        """Units of a warp, which are neighbours."""
        return WARP // self.lanes * self.turns

    @property
    def places(self) -> int:
        """Rows of a buffer of states, with those behind the last that are computed and dropped."""
        most = max(self.together, self.at_once if self.turns > self.own else 1)
        return min(1 << (self.rows - 1).bit_length(), -(-self.rows // most) * most)

    def rows_of(self, batch: int, most: int) -> int:
        """Return the rows of a cluster if clusters of at most ``most`` rows compute a batch in turns."""
        turns = max(1, -(-batch // (self.clusters * most)))
        return max(1, -(-batch // (self.clusters * turns)))

    @property
    def cell_rows(self) -> int:
        """Rows in which a warp's lanes have one cell each."""
        return WARP // self.units_of_warp

    @property
    def cells_of_lane(self) -> int:
        """Cells of a lane."""
        return -(-self.rows // self.cell_rows)

    def pieces(self, hidden: int) -> int:
        """Return the pieces of a gate's weights that a lane has."""
        return -(-hidden // (self.lanes * VECTOR))

    def registers(self, cell: Cell) -> int:
        """Return the weights that a thread has in registers for all steps."""
        return self.own * cell.gates * self.pieces(cell.hidden) * VECTOR

    def shared_bytes(self, cell: Cell, item: int) -> int:
        """Return the bytes of shared memory of a block with weights of ``item`` bytes."""
        padded = self.lanes * VECTOR * self.pieces(cell.hidden)
        floats = self.places * buffers_of(cell) * padded + self.rows * cell.gates * self.units
        return BARRIERS + -(-floats // 4) * 16 + self.kept_bytes(cell, item)

    def streamed_bytes(self, cell: Cell, item: int) -> int:
        """Return the bytes of weights that a block reads in each step."""
        left = self.pieces(cell.hidden) - self.kept
        return (self.turns - self.own) * left * self._piece_bytes(cell, item)

    def kept_bytes(self, cell: Cell, item: int) -> int:
        """Return the bytes of weights in shared memory."""
        return (self.turns - self.own) * self.kept * self._piece_bytes(cell, item)

    def _piece_bytes(self, cell: Cell, item: int) -> int:
        """Return the bytes of a piece of all lanes and gates."""
        return self.threads * cell.gates * VECTOR * item


def buffers_of(cell: Cell) -> int:
    """Return the number of buffers of states: of the step before, of the next one, and of a second product."""
    return 3 if cell.two_products else 2


def division_of(cell: Cell, dtype: str, batch: int | None, device: DeviceModel, layers: int = 1) -> Division:
    """Return the division of a layer.

    One block has all units if registers hold their weights. Else a cluster of the most blocks divides them.

    Args:
        cell: the layer's cell.
        dtype: type of the weights.
        batch: rows of the batch, or None if their number is symbolic.
        device: the GPU.
        layers: layers of such cells that run side by side.

    Raises:
        Refusal: if the device has no clusters, or if a cluster would read too many weights in each step.
    """
    choices = device.choices
    if cell.projection is not None:
        raise Refusal("its state is projected")
    if dtype not in TYPES:
        raise Refusal(f"its weights are of type {dtype}")
    if device.max_cluster < 2:
        raise Refusal("the device has no clusters")
    alone = _of_blocks(cell, dtype, batch, device, 1, layers)
    if alone is not None and alone.own == alone.turns:
        return alone
    most = min(device.max_cluster, choices.recurrent_cluster)
    blocks = 1 << (most.bit_length() - 1)
    while (blocks - 1) * -(-cell.hidden // blocks) >= cell.hidden:  # a block without units
        blocks //= 2
    found = _of_blocks(cell, dtype, batch, device, blocks, layers)
    if found is None:
        raise Refusal(f"{cell.hidden} units are too many for the warps of a cluster")
    streamed = found.streamed_bytes(cell, item_bytes(dtype))
    if streamed > choices.recurrent_streamed_bytes:
        raise Refusal(f"a block of a cluster would read {streamed} bytes of weights in each step")
    return found


def _of_blocks(
    cell: Cell, dtype: str, batch: int | None, device: DeviceModel, blocks: int, layers: int
) -> Division | None:
    """Return the best division over a number of blocks, or None if a warp has no lane for each of its units."""
    item = item_bytes(dtype)
    found: list[tuple[tuple[float, ...], Division]] = []
    for lanes in (4, 8, 16, 32):
        for division in _of_lanes(cell, item, batch, device, blocks, lanes, layers):
            work = division.turns * division.pieces(cell.hidden)
            cost = _cost(division, cell, item, batch, device)
            wanted = 16 if division.own == division.turns else WARP
            found.append(((work, cost, abs(lanes - wanted), -division.rows), division))
    return min(found, key=lambda each: each[0])[1] if found else None


def _of_lanes(
    cell: Cell, item: int, batch: int | None, device: DeviceModel, blocks: int, lanes: int, layers: int
) -> list[Division]:
    """Return divisions with groups of some lanes. They have different numbers of rows, and room for weights left."""
    choices = device.choices
    clusters = max(1, (device.clusters_at_once(blocks) if blocks > 1 else device.sms) // layers)
    units, together, at_once = (
        -(-cell.hidden // blocks),
        choices.recurrent_rows_together,
        choices.recurrent_rows_at_once,
    )
    bare = Division(blocks, units, choices.recurrent_warps, lanes, 0, 0, 1, clusters, together, at_once)
    if bare.units_of_warp > WARP:
        return []
    of_turn = cell.gates * bare.pieces(cell.hidden) * VECTOR
    own = min(bare.turns, choices.recurrent_register_weights // of_turn)
    most = min(choices.recurrent_gpu_rows, choices.recurrent_cells * bare.cell_rows)
    found = []
    for rows in {min(most, rows) for rows in (1, 2, 4, 8, 16, 32)}:
        tried = replace(bare, own=own, rows=rows if batch is None else bare.rows_of(batch, rows))
        kept = _kept(cell, item, device, tried)
        if kept is not None:
            found.append(replace(tried, kept=kept))
    return found


def _kept(cell: Cell, item: int, device: DeviceModel, division: Division) -> int | None:
    """Return the pieces of weights that shared memory holds, or None if it does not hold the states."""
    free = device.shared_per_block - division.shared_bytes(cell, item)
    others = division.turns - division.own
    if free < 0 or not others:
        return None if free < 0 else 0
    of_piece = replace(division, kept=1).shared_bytes(cell, item) - division.shared_bytes(cell, item)
    return min(division.pieces(cell.hidden), free // of_piece)


def _cost(division: Division, cell: Cell, item: int, batch: int | None, device: DeviceModel) -> float:
    """Return about the cycles of a step of a batch, or the product of them for several batches."""
    choices = device.choices
    of_row = division.units * cell.gates * division.lanes * VECTOR * division.pieces(cell.hidden)
    cost = 1.0
    for count in choices.recurrent_batches if batch is None else (batch,):
        rows = division.rows_of(count, division.rows)
        turns = -(-count // (division.clusters * rows))
        passes = -(-rows // division.at_once)
        read = passes * division.kept_bytes(cell, item) / choices.recurrent_shared_rate
        read += passes * division.streamed_bytes(cell, item) / choices.recurrent_streamed_rate
        cycles = choices.recurrent_step_cycles + rows * of_row / choices.recurrent_rate + read
        cost *= max(1, turns) * cycles
    return cost
