# SPDX-License-Identifier: Apache-2.0
"""Our convolution kernel against float64, in the emulator: every tile, odd sizes, groups, windows, splits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tvm import relax

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.choices import CHOICES
from tvm_stitch.compute.cuda.convolution import cuda_convolution, kernel_of, packed_weight
from tvm_stitch.compute.cuda.convolution_plan import TILES, ConvolutionPlan, ImageConvolution, Tile

TARGET = emulated_target()
RNG = np.random.default_rng()


def convolution(
    images: int,
    channels: int,
    outputs: int,
    extents: tuple[int, int],
    window: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> ImageConvolution:
    spans = [d * (w - 1) + 1 for d, w in zip(dilation, window)]
    height, width = ((e + 2 * p - span) // s + 1 for e, p, span, s in zip(extents, padding, spans, strides))
    return ImageConvolution(
        images,
        groups,
        channels // groups,
        outputs // groups,
        extents,
        (height, width),
        window,
        strides,
        padding,
        dilation,
    )


def check(c: ImageConvolution, plan: ConvolutionPlan, axes: int = 2) -> None:
    data = RNG.standard_normal((c.images, c.groups * c.inputs, *c.extents[-axes:])).astype("float32")
    given = np.ascontiguousarray(data.swapaxes(0, 1)) if c.exchanged else data
    weight = RNG.standard_normal((c.groups * c.outputs, c.inputs, *c.window[-axes:])).astype("float32")
    shape = [c.images, c.groups * c.outputs, *c.positions[-axes:]]
    builder = relax.BlockBuilder()
    with builder.function("main", [x := relax.Var("x", relax.TensorType(given.shape, "float32"))]):
        kernel = builder.add_func(cuda_convolution(kernel_of(c, plan, axes), CHOICES), "convolution")
        args = relax.Tuple([x, relax.const(packed_weight(weight, c, plan))])
        result = relax.TensorType([plan.splits, *shape] if plan.splits > 1 else shape, "float32")
        with builder.dataflow():
            out = builder.emit_output(relax.call_tir(kernel, args, result))
        builder.emit_func_output(out)
    run = run_cuda(
        builder.get(), [given], relax_pipeline=relax.get_default_pipeline(TARGET), target=TARGET
    ).check()
    function: Any = torch.conv2d if axes == 2 else torch.conv1d
    wanted = function(
        torch.tensor(data).double(),
        torch.tensor(weight).double(),
        None,
        c.strides[-axes:],
        c.padding[-axes:],
        c.dilation[-axes:],
        c.groups,
    ).numpy()
    found = run.outputs[0].astype("float64")
    found = found.sum(0) if plan.splits > 1 else found
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * abs(wanted).max())


PLAIN = ConvolutionPlan(Tile(64, 64, 2), 2, 1, False)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("splits", [1, 3])
def test_tiles(tile: Tile, splits: int) -> None:
    """Channels and places that fill no tile, steps that fill no round."""
    c = convolution(2, 40, tile.rows + 3, (9, 9), (3, 3), padding=(1, 1))
    check(c, ConvolutionPlan(tile, 1, splits, False))


@pytest.mark.parametrize(
    "c",
    [
        convolution(1, 16, 64, (8, 8), (1, 1)),
        convolution(3, 5, 7, (5, 3), (1, 1)),
        convolution(1, 1, 1, (1, 1), (1, 1)),
        convolution(2, 17, 65, (11, 13), (3, 2), (2, 3), (1, 0)),
        convolution(1, 20, 10, (9, 10), (3, 3), (1, 1), (2, 2), (2, 2)),
        convolution(2, 12, 9, (7, 7), (7, 7), padding=(3, 3)),
        convolution(1, 48, 66, (6, 8), groups=3, padding=(1, 1)),
        convolution(1, 8, 4, (4, 4), (4, 4), (4, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("gathered", [False, True])
def test_windows(c: ImageConvolution, gathered: bool) -> None:
    check(c, replace(PLAIN, gathered=gathered))


def test_more_splits_than_rounds() -> None:
    """The last ones have nothing to add up, and write zeros."""
    check(convolution(1, 32, 8, (5, 5), (1, 1)), replace(PLAIN, splits=4))


@pytest.mark.parametrize("gathered", [False, True])
def test_one_spatial_axis(gathered: bool) -> None:
    c = convolution(2, 18, 20, (1, 31), (1, 3), (1, 2), (0, 1))
    check(c, replace(PLAIN, gathered=gathered, splits=2), axes=1)


EXCHANGED = [
    convolution(7, 20, 65, (12, 12), (4, 4), (1, 1), (1, 1), (2, 2)),
    convolution(30, 3, 9, (9, 8), (7, 6), padding=(1, 1)),
    convolution(70, 17, 5, (6, 9), (6, 9)),
    convolution(1, 1, 1, (1, 1), (1, 1)),
    convolution(5, 2, 64, (11, 7), (3, 1), (2, 3), (2, 0), (3, 2)),
]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("splits", [1, 5])
@pytest.mark.parametrize("c", EXCHANGED, ids=str)
def test_images_and_channels_exchanged(c: ImageConvolution, tile: Tile, splits: int) -> None:
    """As gradients of weights are computed, with strides of the forward convolution as dilations."""
    check(replace(c, exchanged=True), ConvolutionPlan(tile, 1, splits, True))


def test_one_spatial_axis_exchanged() -> None:
    c = convolution(18, 20, 40, (1, 31), (1, 14), (1, 1), (0, 1), (1, 2))
    check(replace(c, exchanged=True), replace(PLAIN, gathered=True, splits=2), axes=1)


def test_convolutions_of_other_sizes_share_a_kernel() -> None:
    small, large = convolution(1, 16, 64, (8, 8)), convolution(4, 64, 128, (30, 20))
    assert kernel_of(small, PLAIN, 2) == kernel_of(large, PLAIN, 2)
    assert kernel_of(small, replace(PLAIN, splits=2), 2) == kernel_of(large, replace(PLAIN, splits=8), 2)
    assert kernel_of(small, PLAIN, 2) != kernel_of(convolution(1, 16, 64, (8, 8), strides=(2, 2)), PLAIN, 2)


def test_the_weight_is_filled_up_with_zeros() -> None:
    c = convolution(1, 6, 6, (8, 8), groups=2)
    weight = RNG.standard_normal((6, 3, 3, 3)).astype("float32")
    packed = packed_weight(weight, c, PLAIN)
    assert packed.shape == (2 * 9 * 16, 64)
    np.testing.assert_array_equal(packed.reshape(2, 9, 16, 64)[1, 5, 2, :3], weight[3:, 2, 1, 2])
    assert np.count_nonzero(packed) == weight.size
