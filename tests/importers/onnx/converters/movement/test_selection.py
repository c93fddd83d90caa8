# SPDX-License-Identifier: Apache-2.0
"""Unique elements, of whole tensors and along axes."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import helper

from tests.importers.onnx.runs import RNG, compare


@pytest.mark.parametrize("axis", [{}, {"axis": 0}, {"axis": -1}])
def test_unique(axis: dict[str, Any]) -> None:
    x = RNG.integers(0, 3, (5, 2)).astype("float32")
    compare(helper.make_node("Unique", ["x"], list("yivc"), sorted=1, **axis), {"x": x})
