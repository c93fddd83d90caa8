# SPDX-License-Identifier: Apache-2.0
"""The division of a convolution: a small batch fills the device, a large one is not divided in vain."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.compute.cuda.test_convolution import convolution
from tvm_stitch.compute.cuda.convolution_plan import (
    TILES,
    ImageConvolution,
    _plans,
    are_clusters,
    convolution_plan,
)
from tvm_stitch.device import GPUS
from tvm_stitch.support.failures import Refusal

H100 = GPUS["h100"]


def resnet(images: int, channels: int, size: int) -> ImageConvolution:
    return convolution(images, channels, channels, (size, size), padding=(1, 1))


@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (256, 14), (512, 7)])
def test_one_image_fills_the_device(channels: int, size: int) -> None:
    c = resnet(1, channels, size)
    plan = convolution_plan(c, H100)
    tiles = -(-channels // plan.tile.rows) * -(-(size**2) // plan.tile.positions)
    assert 0.7 * H100.sms <= tiles * plan.splits <= plan.resident * H100.sms


@pytest.mark.parametrize(("images", "channels", "size"), [(32, 512, 7), (32, 128, 28), (5, 256, 14)])
@pytest.mark.parametrize("name", ["h100", "a100", "orin"])
def test_splits_run_at_once(images: int, channels: int, size: int, name: str) -> None:
    """More blocks than a device holds come of sums that are not divided."""
    plan = convolution_plan(resnet(images, channels, size), GPUS[name])
    tiles = -(-channels // plan.tile.rows) * -(-(images * size**2) // plan.tile.positions)
    assert plan.splits == 1 or tiles * plan.splits <= plan.resident * GPUS[name].sms


@pytest.mark.parametrize(
    ("tiles", "splits", "clusters"),
    [(26, 4, True), (28, 4, True), (49, 2, True), (16, 8, False), (32, 4, False), (8, 16, False)],
)
def test_clusters(tiles: int, splits: int, clusters: bool) -> None:
    """Each block has to find a multiprocessor, as single ones would: 15 clusters of eight do, 30 of four."""
    assert are_clusters(tiles, splits, H100) == clusters
    assert not are_clusters(tiles, splits, GPUS["a100"])


def test_clusters_beside_each_other() -> None:
    """Clusters share multiprocessors if single blocks would, too."""
    assert are_clusters(40, 4, H100) and not are_clusters(90, 4, H100)


def test_a_large_batch_is_not_divided() -> None:
    assert convolution_plan(resnet(64, 64, 56), H100).splits == 1


def test_few_channels_are_gathered() -> None:
    assert convolution_plan(convolution(1, 3, 64, (224, 224), (7, 7), (2, 2), (3, 3)), H100).gathered
    assert not convolution_plan(resnet(1, 64, 56), H100).gathered


def test_what_is_exchanged_is_gathered() -> None:
    """Depth is then the window of one image after the other: neighbours in memory."""
    gradient = replace(convolution(64, 32, 128, (56, 56), (28, 28), dilation=(2, 2)), exchanged=True)
    plan = convolution_plan(gradient, H100)
    assert plan.gathered and plan.splits > 1
    assert plan.tile.shared_bytes(True) - plan.tile.shared_bytes(False) == 16 * plan.tile.positions


@pytest.mark.parametrize("name", ["a100", "rtx3090", "rtx4090", "h100", "b200"])
def test_blocks_fit_the_device(name: str) -> None:
    device = GPUS[name]
    plan = convolution_plan(resnet(1, 256, 14), device)
    assert plan.tile.shared_bytes(False) <= device.shared_per_block
    assert plan.resident * (plan.tile.shared_bytes(False) + device.shared_reserved) <= device.shared_per_sm
    assert plan.resident * plan.tile.threads * 128 <= device.registers_per_sm
    assert plan.resident >= 1


def test_the_system_has_its_share_of_shared_memory() -> None:
    """Blocks fit next to what the system reserves for each, however little the device has left."""
    c, needed = resnet(32, 256, 14), convolution_plan(resnet(32, 256, 14), H100).tile.shared_bytes(False)
    for blocks in (1, 2, 3):
        exact = blocks * (needed + H100.shared_reserved)
        for shared, most in ((exact, blocks), (exact - 1, blocks - 1)):
            device = replace(H100, shared_per_sm=shared, registers_per_sm=1 << 20)
            for tile in TILES:
                if tile.shared_bytes(False) != needed or most == 0:
                    continue
                plans = [plan for plan in _plans(c, device) if plan.tile == tile]
                assert plans and {plan.resident for plan in plans} == {most}


def test_tiles_that_fit_no_device_are_not_taken() -> None:
    least = min(tile.shared_bytes(False) for tile in TILES)
    assert (
        convolution_plan(resnet(1, 64, 56), replace(H100, shared_per_block=least)).tile.shared_bytes(False)
        == least
    )
    with pytest.raises(Refusal, match="do not fit the device"):
        convolution_plan(resnet(1, 64, 56), replace(H100, shared_per_block=least - 1))


def test_depthwise_is_left_to_the_library() -> None:
    with pytest.raises(Refusal, match="times what is asked"):
        convolution_plan(convolution(1, 64, 64, (56, 56), groups=64), H100)


def test_what_needs_more_than_32_bits_is_left() -> None:
    c = resnet(2**20, 64, 56)
    assert c.images * math.prod(c.positions) > 2**31
    with pytest.raises(Refusal, match="32-bit"):
        convolution_plan(c, H100)


MOST = 2**29 - 1
"""Bytes of so many float32 values fit 32 bits."""


@pytest.mark.parametrize(
    ("fits", "other"),
    [
        (convolution(MOST, 16, 64, (1, 1), (1, 1)), {"images": MOST + 1}),  # output positions
        (convolution(1, MOST // 4, 64, (2, 2), (2, 2)), {"inputs": MOST // 4 + 1}),  # elements of an image
        (
            replace(convolution(MOST // 4, 16, 64, (2, 2), (2, 2)), exchanged=True),  # elements of a channel
            {"images": MOST // 4 + 1},
        ),
    ],
)
def test_the_limits_of_32_bits(fits: ImageConvolution, other: dict[str, int]) -> None:
    with pytest.raises(Refusal, match="32-bit"):
        convolution_plan(replace(fits, **other), H100)
    try:
        assert convolution_plan(fits, H100)
    except Refusal as refusal:
        assert "times what is asked" in str(refusal)
