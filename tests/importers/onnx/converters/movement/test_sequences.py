# SPDX-License-Identifier: Apache-2.0
"""Sequences of known length compute what ONNX Runtime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.importers.onnx.runs import compare, floats


@pytest.mark.parametrize("at", [0, -1, 2])
def test_chunks_of_which_the_last_is_smaller(at: int) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "n"], ["s"], axis=1),
        helper.make_node("SequenceAt", ["s", "i"], ["y"]),
    ]
    compare(nodes, {"x": floats(2, 9)}, {"n": np.int64(4), "i": np.int64(at)})


@pytest.mark.parametrize("how", [{"axis": 0}, {"axis": 1, "new_axis": 1}])
def test_insert_erase_and_join(how: dict[str, Any]) -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "z"], ["s"]),
        helper.make_node("SequenceInsert", ["s", "x", "i"], ["t"]),
        helper.make_node("SequenceErase", ["t", "i"], ["u"]),
        helper.make_node("SequenceInsert", ["u", "z"], ["w"]),
        helper.make_node("ConcatFromSequence", ["w"], ["y"], **how),
    ]
    compare(nodes, {"x": floats(2, 3), "z": floats(2, 3)}, {"i": np.int64(1)})
