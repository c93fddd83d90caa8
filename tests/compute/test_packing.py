# SPDX-License-Identifier: Apache-2.0
"""Packed weights."""

from __future__ import annotations

import numpy as np

from tvm_stitch.compute.packing import packed, packed_shape


def test_panels_are_padded_with_zeros() -> None:
    w = np.arange(30, dtype="float32").reshape(3, 10)
    panels = packed(w, False, 8)
    assert panels.shape == packed_shape(10, 3, 8) == (2, 3, 8)
    np.testing.assert_array_equal(panels[0], w[:, :8])
    np.testing.assert_array_equal(panels[1, :, :2], w[:, 8:])
    assert not panels[1, :, 2:].any()
    np.testing.assert_array_equal(packed(w.T.copy(), True, 8), panels)
