# SPDX-License-Identifier: Apache-2.0
"""Packed weights."""

from __future__ import annotations

import numpy as np

from tvm_stitch.compute.contraction import Contraction
from tvm_stitch.compute.convolution import Convolution, Window
from tvm_stitch.compute.cpu.packing import packed, packed_shape
from tvm_stitch.compute.cpu.padding import Padded
from tvm_stitch.graph.ir import Tensor


def product(transposed: bool) -> Contraction:
    x, w, y = Tensor("x", (4, 3), "float32"), Tensor("w", (), "float32"), Tensor("y", (4, 10), "float32")
    return Contraction(x, w, y, 1, 4, 10, 3, transposed)


def test_panels_are_padded_with_zeros() -> None:
    w = np.arange(30, dtype="float32").reshape(3, 10)
    panels = packed(product(False), w, 8)
    assert panels.shape == packed_shape(product(False), 8) == (2, 3, 8)
    np.testing.assert_array_equal(panels[0], w[:, :8])
    np.testing.assert_array_equal(panels[1, :, :2], w[:, 8:])
    assert not panels[1, :, 2:].any()
    np.testing.assert_array_equal(packed(product(True), w.T.copy(), 8), panels)


def convolution(groups: int, inputs: int, outputs: int) -> Convolution:
    """Build a convolution with windows of 1 x 2, and a weight of the axes f, r0, r1, c."""
    channels = groups * inputs
    x, w = (
        Tensor("x", (1, 1, 5, channels), "float32"),
        Tensor("w", (groups * outputs, 1, 2, inputs), "float32"),
    )
    y = Tensor("y", (1, 1, 4, groups * outputs), "float32")
    data = Padded(x, (0, 1, 2, 3), x.shape, x.shape, (0, 0, 0, 0), None)
    windows = (Window(1, 1, 1, 1), Window(4, 2, 1, 1))
    return Convolution(data, w, (0, 1, 2, 3), y, 1, windows, groups, inputs, outputs)


def test_each_group_has_panels_of_its_own() -> None:
    conv = convolution(2, 3, 5)
    w = np.arange(60, dtype="float32").reshape(10, 1, 2, 3)
    panels = packed(conv, w, 4)
    assert panels.shape == packed_shape(conv, 4) == (4, 6, 4)
    for group in range(2):
        rows = w[5 * group : 5 * group + 5].reshape(5, 6).T
        np.testing.assert_array_equal(panels[2 * group], rows[:, :4])
        np.testing.assert_array_equal(panels[2 * group + 1, :, :1], rows[:, 4:])
        assert not panels[2 * group + 1, :, 1:].any()


def test_channels_that_do_not_mix_are_neighbours() -> None:
    conv = convolution(5, 1, 1)
    w = np.arange(10, dtype="float32").reshape(5, 1, 2, 1)
    np.testing.assert_array_equal(packed(conv, w, 4), w.reshape(5, 2).T)
    assert packed_shape(conv, 4) == (2, 5)


def test_groups_of_the_depth_are_neighbours() -> None:
    """A column has two neighbours of the depth next to each other. The last has a zero."""
    w = np.arange(1, 31, dtype="float32").reshape(3, 10)
    panels = packed(product(False), w, 8, 2)
    assert panels.shape == packed_shape(product(False), 8, 2) == (2, 2, 16)
    np.testing.assert_array_equal(panels[0, 0], np.stack([w[0, :8], w[1, :8]], 1).ravel())
    np.testing.assert_array_equal(panels[0, 1], np.stack([w[2, :8], np.zeros(8)], 1).ravel())
    np.testing.assert_array_equal(panels[1, 0, :4], [w[0, 8], w[1, 8], w[0, 9], w[1, 9]])
    assert not panels[1, :, 4:].any()
    np.testing.assert_array_equal(packed(product(True), w.T.copy(), 8, 2), panels)


def test_groups_of_channels_end_with_each_place_of_a_window() -> None:
    conv = convolution(1, 3, 5)
    w = np.arange(1, 31, dtype="float32").reshape(5, 1, 2, 3)
    panels = packed(conv, w, 8, 2)
    assert panels.shape == packed_shape(conv, 8, 2) == (1, 4, 16)
    for place in range(2):
        channels = w[:, 0, place]
        np.testing.assert_array_equal(panels[0, 2 * place, :10], channels[:, :2].ravel())
        rest = panels[0, 2 * place + 1, :10].reshape(5, 2)
        np.testing.assert_array_equal(rest[:, 0], channels[:, 2])
        assert not rest[:, 1].any()
