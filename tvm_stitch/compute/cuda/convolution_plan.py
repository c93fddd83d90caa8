# SPDX-License-Identifier: Apache-2.0
"""The plan of this package's CUDA convolution: the tile of a block, and the number of splits of each sum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...cost.convolutions import TiledSums, tiled_sum_cycles
from ...device import DeviceModel
from ...support.failures import Refusal

DEPTH = 16
"""Products that a slice of a block adds up per step."""

STAGES = 3
"""Number of steps in shared memory."""

PLACE_WORDS = 4
"""Words of 32 bits that hold the coordinates of a position."""

REGISTERS = 128
"""Registers of a thread."""

_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class ImageConvolution:
    """``out[n, f, y...]``, the sum over c, r... of ``data[n, c of f, y * stride + r * dilation - padding...] *
    weight``.

    Attributes:
        images: images of a batch.
        groups, inputs, outputs: number of groups, and channels of each group.
        extents: height and width of an image.
        positions: output positions along both axes.
        window, strides, padding, dilation: by spatial axis. Padding is the same on both sides.
        exchanged: whether the data has channels before images in memory. There is then a single group.
    """

    images: int
    groups: int
    inputs: int
    outputs: int
    extents: tuple[int, int]
    positions: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    exchanged: bool = False

    @property
    def products(self) -> int:
        """Number of multiply-adds."""
        results = self.images * self.groups * self.outputs * math.prod(self.positions)
        return results * self.inputs * math.prod(self.window)


@dataclass(frozen=True)
class Tile:
    """The channels and positions of a block's results, and the groups of threads that share out their products."""

    rows: int
    positions: int
    slices: int

    @property
    def threads(self) -> int:
        """Threads of a block. Each has 8 x 8 results of a slice."""
        return self.rows * self.positions // 64 * self.slices

    def shared_bytes(self, exchanged: bool) -> int:
        """Return the bytes of shared memory of a block.

        It holds the steps in flight, and coordinates of positions if these are looked up. Later it holds the sums.

        Args:
            exchanged: whether channels come before images.
        """
        steps = STAGES * self.slices * (self.rows + self.positions) * DEPTH
        sums = self.slices * self.rows * self.positions if self.slices > 1 else 0
        return 4 * max(steps + PLACE_WORDS * self.positions * exchanged, sums)

    def shared_floats(self, exchanged: bool, kept: bool) -> int:
        """Return the floats of shared memory of a block.

        Args:
            exchanged: whether channels come before images.
            kept: whether the block goes on with its tile of results.
        """
        return max(self.shared_bytes(exchanged) // 4, self.rows * self.positions * kept)


TILES = (Tile(64, 32, 4), Tile(64, 64, 2), Tile(64, 64, 4), Tile(64, 128, 2), Tile(128, 128, 1))


@dataclass(frozen=True)
class ConvolutionPlan:
    """The plan of a convolution.

    Attributes:
        tile: the tile of a block.
        resident: blocks that share a multiprocessor.
        splits: number of splits of each sum.
        gathered: steps run through the windows of channels, not through the channels at one window position.
    """

    tile: Tile
    resident: int
    splits: int
    gathered: bool


def convolution_plan(convolution: ImageConvolution, device: DeviceModel) -> ConvolutionPlan:
    """Return the plan with the least estimated time.

    Raises:
        Refusal: if tiles would be mostly wasted, or sizes do not fit 32 bits.
    """
    c = convolution
    step = (c.images if c.exchanged else c.groups * c.inputs) * math.prod(c.extents)
    if max(c.images * math.prod(c.positions), step) > _LARGEST // 4:
        raise Refusal("its sizes do not fit our kernel's 32-bit numbers")
    estimates = [(_cycles(c, plan, device), plan) for plan in _plans(c, device)]
    if not estimates:
        raise Refusal("our kernel's tiles do not fit the device")
    _, best = min(estimates, key=lambda each: each[0])
    wasted = _computed(c, best) / (
        c.images * math.prod(c.positions) * c.outputs * c.inputs * math.prod(c.window)
    )
    if wasted > device.choices.convolution_wasted:
        raise Refusal(f"our kernel's tiles would compute {wasted:.1f} times what is asked")
    return best


def _plans(c: ImageConvolution, device: DeviceModel) -> Iterator[ConvolutionPlan]:
    filled = -(-c.inputs // DEPTH) * DEPTH / c.inputs
    gathered = c.exchanged or (filled > device.choices.convolution_filled and math.prod(c.window) > 1)
    for tile in TILES:
        needed = tile.shared_bytes(c.exchanged)
        if needed > device.shared_per_block:
            continue
        shared = device.shared_per_sm // (needed + device.shared_reserved)
        resident = min(device.registers_per_sm // (REGISTERS * tile.threads), shared)
        for splits in device.choices.convolution_splits:
            plan = ConvolutionPlan(tile, resident, splits, gathered)
            if splits == 1 or _is_worth_dividing(c, plan, device):
                yield plan


def _is_worth_dividing(c: ImageConvolution, plan: ConvolutionPlan, device: DeviceModel) -> bool:
    """Return whether splits have enough work, and all run at once, so that blocks can wait for each other.

    If some blocks would begin only when others end, smaller tiles fill the device as well, without sums to add up.
    """
    at_once = _tiles(c, plan) * plan.splits <= plan.resident * device.sms
    return at_once and _rounds(c, plan) >= device.choices.convolution_fewest_rounds


def _steps(c: ImageConvolution, plan: ConvolutionPlan) -> int:
    taps = math.prod(c.window)
    return -(-c.inputs * taps // DEPTH) if plan.gathered else taps * -(-c.inputs // DEPTH)


def _rounds(c: ImageConvolution, plan: ConvolutionPlan) -> int:
    """Return the steps of a slice in a split."""
    return -(-_steps(c, plan) // (plan.tile.slices * plan.splits))


def _tiles(c: ImageConvolution, plan: ConvolutionPlan) -> int:
    positions = c.images * math.prod(c.positions)
    return c.groups * -(-c.outputs // plan.tile.rows) * -(-positions // plan.tile.positions)


def _computed(c: ImageConvolution, plan: ConvolutionPlan) -> int:
    """Return the multiply-adds of a group, including the padding of tiles and steps."""
    return _tiles(c, plan) // c.groups * plan.tile.rows * plan.tile.positions * _steps(c, plan) * DEPTH


def _cycles(c: ImageConvolution, plan: ConvolutionPlan, device: DeviceModel) -> float:
    """Return the estimated cycles of a plan."""
    tile, tiles = plan.tile, _tiles(c, plan)
    work = TiledSums(
        (tile.rows, tile.positions, tile.slices),
        DEPTH,
        tiles,
        _rounds(c, plan),
        plan.resident,
        plan.splits,
        plan.splits > 1 and are_clusters(tiles, plan.splits, device),
        4 * c.images * c.groups * c.outputs * math.prod(c.positions),
    )
    return tiled_sum_cycles(work, device)


def are_clusters(tiles: int, splits: int, device: DeviceModel) -> bool:
    """Return whether the splits of a tile can form a cluster without more blocks per multiprocessor than single
    ones.
    """
    if splits > device.max_cluster:
        return False
    return -(-tiles // device.clusters_at_once(splits)) <= -(-tiles * splits // device.sms)
