# SPDX-License-Identifier: Apache-2.0
"""Estimated time of this project's CUDA kernel of convolutions, in cycles of a multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass

from ..device import DeviceModel


@dataclass(frozen=True)
class TiledSums:
    """Tiles of sums of products, which blocks compute step by step.

    Attributes:
        tile: channels and positions of a block's results, and slices of threads that add up different products.
        reduction: products of each sum in a step of a slice.
        tiles: the number of tiles.
        rounds: steps of a slice in a split.
        resident: blocks that share a multiprocessor.
        splits: splits of each sum, each a block.
        clustered: whether the splits of a tile are a cluster, which adds them up.
        result_bytes: bytes of the result.
    """

    tile: tuple[int, int, int]
    reduction: int
    tiles: int
    rounds: int
    resident: int
    splits: int
    clustered: bool
    result_bytes: int


def tiled_sum_cycles(work: TiledSums, device: DeviceModel) -> float:
    """Return the estimated cycles: full rounds of resident blocks, and a last round of the remaining ones."""
    choices = device.choices
    rows, positions, slices = work.tile
    measured = {tuple(shape): share for *shape, share in choices.convolution_efficiency}
    efficiency = measured.get(work.tile, choices.convolution_usual_efficiency)
    step = slices * rows * positions * work.reduction / choices.convolution_lanes / efficiency
    full, rest = divmod(-(-work.tiles * work.splits // device.sms), work.resident)

    def wave(blocks: int) -> float:
        if not blocks:
            return 0.0
        return choices.convolution_block_cycles + work.rounds * max(
            choices.convolution_step_cycles, blocks * step
        )

    return full * wave(work.resident) + wave(rest) + _split_cycles(work, device)


def _split_cycles(work: TiledSums, device: DeviceModel) -> float:
    """Return the cycles in which splits are added up."""
    choices = device.choices
    if work.splits == 1:
        return 0.0
    if work.clustered:
        return choices.convolution_cluster_cycles
    return (
        choices.convolution_apart_cycles
        + work.splits * work.result_bytes / choices.convolution_bytes_per_cycle
    )
