# SPDX-License-Identifier: Apache-2.0
"""How a convolution is divided: a small batch fills the device, a large one is not divided in vain."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.compute.test_cuda_convolution import convolution
from tvm_stitch.compute.cuda_convolution_plan import TILES, ImageConvolution, convolution_plan
from tvm_stitch.device import GPUS
from tvm_stitch.failures import Refusal

H100 = GPUS["h100"]


def resnet(images: int, channels: int, size: int) -> ImageConvolution:
    return convolution(images, channels, channels, (size, size), padding=(1, 1))


@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (256, 14), (512, 7)])
def test_one_image_fills_the_device(channels: int, size: int) -> None:
    c = resnet(1, channels, size)
    plan = convolution_plan(c, H100)
    tiles = -(-channels // plan.tile.rows) * -(-(size**2) // plan.tile.places)
    assert plan.splits > 1
    assert tiles * plan.splits >= 0.7 * H100.sms


def test_a_large_batch_is_not_divided() -> None:
    assert convolution_plan(resnet(64, 64, 56), H100).splits == 1


def test_few_channels_are_gathered() -> None:
    assert convolution_plan(convolution(1, 3, 64, (224, 224), (7, 7), (2, 2), (3, 3)), H100).gathered
    assert not convolution_plan(resnet(1, 64, 56), H100).gathered


@pytest.mark.parametrize("name", ["a100", "rtx3090", "rtx4090", "h100", "b200"])
def test_blocks_fit_the_device(name: str) -> None:
    device = GPUS[name]
    plan = convolution_plan(resnet(1, 256, 14), device)
    assert plan.tile.shared_bytes <= device.shared_per_block
    assert plan.resident * (plan.tile.shared_bytes + device.shared_reserved) <= device.shared_per_sm
    assert plan.resident * plan.tile.threads * 128 <= device.registers_per_sm
    assert plan.resident >= 1


def test_tiles_that_fit_no_device_are_not_taken() -> None:
    least = min(tile.shared_bytes for tile in TILES)
    assert (
        convolution_plan(resnet(1, 64, 56), replace(H100, shared_per_block=least)).tile.shared_bytes == least
    )
    with pytest.raises(Refusal, match="do not fit the device"):
        convolution_plan(resnet(1, 64, 56), replace(H100, shared_per_block=least - 1))


def test_depthwise_is_left_to_the_library() -> None:
    with pytest.raises(Refusal, match="times what is asked"):
        convolution_plan(convolution(1, 64, 64, (56, 56), groups=64), H100)


def test_what_needs_more_than_32_bits_is_left() -> None:
    c = resnet(2**20, 64, 56)
    assert c.images * math.prod(c.places) > 2**31
    with pytest.raises(Refusal, match="32-bit"):
        convolution_plan(c, H100)
