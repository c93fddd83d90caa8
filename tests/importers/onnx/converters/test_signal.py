# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms and windows compute what ONNX Runtime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import compare, floats


@pytest.mark.parametrize(("how", "parts"), [({}, 2), ({"inverse": 1}, 2), ({"onesided": 1}, 1)])
def test_transforms(how: dict[str, Any], parts: int) -> None:
    compare(helper.make_node("DFT", ["x"], ["y"], **how), {"x": floats(2, 7, parts)})


@pytest.mark.parametrize("length", [5, 9])
def test_transforms_of_another_length(length: int) -> None:
    constants = {"n": np.int64(length), "a": np.int64(1)}
    compare(helper.make_node("DFT", ["x", "n", "a"], ["y"]), {"x": floats(2, 7, 1)}, constants)


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
