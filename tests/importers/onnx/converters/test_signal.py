# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms and windows compute what ONNX Runtime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import compare, computed, floats, model


@pytest.mark.parametrize(("how", "parts"), [({}, 2), ({"inverse": 1}, 2), ({"onesided": 1}, 1)])
def test_transforms(how: dict[str, Any], parts: int) -> None:
    compare(helper.make_node("DFT", ["x"], ["y"], **how), {"x": floats(2, 7, parts)})


@pytest.mark.parametrize("length", [5, 9])
def test_transforms_of_another_length(length: int) -> None:
    constants = {"n": np.int64(length), "a": np.int64(1)}
    compare(helper.make_node("DFT", ["x", "n", "a"], ["y"]), {"x": floats(2, 7, 1)}, constants)


@pytest.mark.parametrize("length", [60, 521])
@pytest.mark.parametrize("how", [{}, {"inverse": 1}, {"onesided": 1}, {"inverse": 1, "onesided": 1}])
def test_long_transforms(length: int, how: dict[str, int]) -> None:
    """ONNX Runtime's angles of such lengths are off by 1e-4, so that NumPy computes the expected numbers."""
    known = length // 2 + 1 if len(how) == 2 else length
    x = floats(2, known, 1 if how == {"onesided": 1} else 2)
    node = helper.make_node("DFT", ["x", "n", "a"], ["y"], **how)
    proto = model(node, {"x": x}, {"n": np.int64(length), "a": np.int64(1)})
    numbers = x[..., 0] + 1j * x[..., -1].astype("float64")
    if len(how) == 2:
        want = np.fft.irfft(numbers, length)[..., None]
    else:
        found = np.fft.rfft(x[..., 0]) if "onesided" in how else np.fft.fft(numbers)
        found = np.fft.ifft(numbers) if "inverse" in how else found
        want = np.stack([found.real, found.imag], -1)
    (got,) = computed(proto, {"x": x})
    assert got.shape == want.shape and got.dtype == x.dtype
    np.testing.assert_allclose(got, want, atol=1e-6 * np.abs(want).max())


def test_an_axis_as_an_attribute() -> None:
    compare(helper.make_node("DFT", ["x"], ["y"], axis=-3), {"x": floats(8, 3, 2)}, opset=17)


def test_frames() -> None:
    compare(
        helper.make_node("STFT", list("xsw"), ["y"]), {"x": floats(2, 32)}, {"s": np.int64(4), "w": floats(8)}
    )
    node = helper.make_node("STFT", ["x", "s", "", "l"], ["y"], onesided=0)
    compare(node, {"x": floats(2, 32, 1)}, {"s": np.int64(4), "l": np.int64(8)})


@pytest.mark.parametrize("kind", ["Hann", "Hamming", "Blackman"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(kind: str, periodic: int) -> None:
    nodes = [
        helper.make_node(f"{kind}Window", ["n"], ["w"], periodic=periodic),
        helper.make_node("Mul", ["x", "w"], ["y"]),
    ]
    compare(nodes, {"x": floats(2, 8)}, {"n": np.int64(8)})
