# SPDX-License-Identifier: Apache-2.0
"""How our kernel computes a convolution on a CUDA device: its tile, and the parts into which sums are divided."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...device import DeviceModel
from ...support.failures import Refusal

DEPTH = 16
"""Products that a slice of a block adds up in a step."""

STAGES = 3
"""Steps in shared memory."""

PLACE_WORDS = 4
"""Of 32 bits that say where a place lies."""

REGISTERS = 128
"""Of a thread."""

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
"""Parts into which sums may be divided."""

FEWEST_ROUNDS = 2
"""Steps of each slice in a split; with fewer, most of the time is spent before the first one has been copied."""

FILLED = 1.34
"""Where the channels of a place of the window, filled up to whole steps, are more by this factor, steps run through the
windows of channels: addresses then take more instructions."""

WASTED = 2.0
"""A tile that computes so many times what is asked is left to the library."""

LATENCY = 1700
"""Cycles of a step whose copies are waited for."""

EFFICIENCY = {(64, 32, 4): 0.6}
"""Of the multiply-adds that a multiprocessor can do, by tile; others: ``USUAL_EFFICIENCY``."""
USUAL_EFFICIENCY = 0.65

FIXED = 5000
"""Cycles of a block beside its steps: the launch, the first copies, the write-back."""

LANES = 128
"""Multiply-adds of float32 of a multiprocessor in a cycle. Where there are 64, all plans are slower alike."""

CLUSTER_SUMS = 1500
"""Cycles in which the blocks of a cluster add up each other's splits."""

APART_SUMS = 3500
"""Cycles in which a grid or a kernel behind it begins to add up splits from memory, and ends."""

BYTES_PER_CYCLE = 1500
"""Of the splits' results, which are written and read again, mostly in the second-level cache."""

PACKED_PRODUCTS = 2**29
"""Multiply-adds from which on a computed weight is packed for our kernel: beside them packing takes next to no time."""

_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class ImageConvolution:
    """``out[n, f, y...]``, the sum over c, r... of ``data[n, c of f, y * stride + r * dilation - padding...] * weight``

    Attributes:
        images: of a batch.
        groups, inputs, outputs: groups of channels, and those of each group.
        extents: height and width of an image.
        places: of the result.
        window, strides, padding, dilation: by spatial axis; padding is the same on both sides.
        exchanged: whether images and channels of the data are so in memory; there is one group then.
    """

    images: int
    groups: int
    inputs: int
    outputs: int
    extents: tuple[int, int]
    places: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    exchanged: bool = False

    @property
    def products(self) -> int:
        """Multiply-adds."""
        results = self.images * self.groups * self.outputs * math.prod(self.places)
        return results * self.inputs * math.prod(self.window)


@dataclass(frozen=True)
class Tile:
    """A block's: channels and places of its results, and groups of threads that add up different products of them."""

    rows: int
    places: int
    slices: int

    @property
    def threads(self) -> int:
        """Of a block: each has 8 x 8 results of a slice."""
        return self.rows * self.places // 64 * self.slices

    def shared_bytes(self, exchanged: bool) -> int:
        """Of a block: the steps that are copied ahead, and where its places lie if that is looked up; later the sums.

        Args:
            exchanged: whether images and channels are.
        """
        steps = STAGES * self.slices * (self.rows + self.places) * DEPTH
        sums = self.slices * self.rows * self.places if self.slices > 1 else 0
        return 4 * max(steps + PLACE_WORDS * self.places * exchanged, sums)

    def shared_floats(self, exchanged: bool, kept: bool) -> int:
        """Floats of shared memory of a block.

        Args:
            exchanged: whether images and channels are.
            kept: whether the block goes on with its tile of results.
        """
        return max(self.shared_bytes(exchanged) // 4, self.rows * self.places * kept)


TILES = (Tile(64, 32, 4), Tile(64, 64, 2), Tile(64, 64, 4), Tile(64, 128, 2), Tile(128, 128, 1))


@dataclass(frozen=True)
class ConvolutionPlan:
    """How a convolution is computed.

    Attributes:
        tile: of a block.
        resident: blocks that share a multiprocessor.
        splits: parts into which each sum is divided.
        gathered: steps run through the windows of channels, not through the channels at a place of the window.
    """

    tile: Tile
    resident: int
    splits: int
    gathered: bool


def convolution_plan(convolution: ImageConvolution, device: DeviceModel) -> ConvolutionPlan:
    """Return the plan of the least estimated time.

    Raises:
        Refusal: where most of each tile would be computed in vain, or sizes are too large for 32 bits.
    """
    c = convolution
    step = (c.images if c.exchanged else c.groups * c.inputs) * math.prod(c.extents)
    if max(c.images * math.prod(c.places), step) > _LARGEST // 4:
        raise Refusal("its sizes do not fit our kernel's 32-bit numbers")
    made = [(_cycles(c, plan, device), plan) for plan in _plans(c, device)]
    if not made:
        raise Refusal("our kernel's tiles do not fit the device")
    _, best = min(made, key=lambda each: each[0])
    wasted = _computed(c, best) / (
        c.images * math.prod(c.places) * c.outputs * c.inputs * math.prod(c.window)
    )
    if wasted > WASTED:
        raise Refusal(f"our kernel's tiles would compute {wasted:.1f} times what is asked")
    return best


def _plans(c: ImageConvolution, device: DeviceModel) -> Iterator[ConvolutionPlan]:
    filled = -(-c.inputs // DEPTH) * DEPTH / c.inputs
    gathered = c.exchanged or (filled > FILLED and math.prod(c.window) > 1)
    for tile in TILES:
        needed = tile.shared_bytes(c.exchanged)
        if needed > device.shared_per_block:
            continue
        shared = device.shared_per_sm // (needed + device.shared_reserved)
        resident = min(device.registers_per_sm // (REGISTERS * tile.threads), shared)
        for splits in SPLITS:
            plan = ConvolutionPlan(tile, resident, splits, gathered)
            if splits == 1 or _is_worth_dividing(c, plan, device):
                yield plan


def _is_worth_dividing(c: ImageConvolution, plan: ConvolutionPlan, device: DeviceModel) -> bool:
    """Return whether splits have enough to do, and all run at once: blocks can then wait for each other.

    Where some would begin when others end, smaller tiles fill the device as well, without sums to add up.
    """
    at_once = _tiles(c, plan) * plan.splits <= plan.resident * device.sms
    return at_once and _rounds(c, plan) >= FEWEST_ROUNDS


def _steps(c: ImageConvolution, plan: ConvolutionPlan) -> int:
    taps = math.prod(c.window)
    return -(-c.inputs * taps // DEPTH) if plan.gathered else taps * -(-c.inputs // DEPTH)


def _rounds(c: ImageConvolution, plan: ConvolutionPlan) -> int:
    """Steps of a slice in a split."""
    return -(-_steps(c, plan) // (plan.tile.slices * plan.splits))


def _tiles(c: ImageConvolution, plan: ConvolutionPlan) -> int:
    places = c.images * math.prod(c.places)
    return c.groups * -(-c.outputs // plan.tile.rows) * -(-places // plan.tile.places)


def _computed(c: ImageConvolution, plan: ConvolutionPlan) -> int:
    """Multiply-adds of a group, with those that fill tiles and steps up."""
    return _tiles(c, plan) // c.groups * plan.tile.rows * plan.tile.places * _steps(c, plan) * DEPTH


def _cycles(c: ImageConvolution, plan: ConvolutionPlan, device: DeviceModel) -> float:
    """Return the estimated time: full rounds of resident blocks, and a last one of those that are left."""
    tile = plan.tile
    efficiency = EFFICIENCY.get((tile.rows, tile.places, tile.slices), USUAL_EFFICIENCY)
    step = tile.slices * tile.rows * tile.places * DEPTH / LANES / efficiency
    full, rest = divmod(-(-_tiles(c, plan) * plan.splits // device.sms), plan.resident)

    def wave(blocks: int) -> float:
        return FIXED + _rounds(c, plan) * max(LATENCY, blocks * step) if blocks else 0.0

    return full * wave(plan.resident) + wave(rest) + _sums(c, plan, device)


def _sums(c: ImageConvolution, plan: ConvolutionPlan, device: DeviceModel) -> float:
    """Return the cycles in which splits are added up."""
    if plan.splits == 1:
        return 0.0
    if are_clusters(_tiles(c, plan), plan.splits, device):
        return CLUSTER_SUMS
    results = 4 * c.images * c.groups * c.outputs * math.prod(c.places)
    return APART_SUMS + plan.splits * results / BYTES_PER_CYCLE


def are_clusters(tiles: int, splits: int, device: DeviceModel) -> bool:
    """Whether the splits of a tile can be a cluster, with no more blocks on a multiprocessor than single ones."""
    if splits > device.max_cluster:
        return False
    return -(-tiles // device.clusters_at_once(splits)) <= -(-tiles * splits // device.sms)
