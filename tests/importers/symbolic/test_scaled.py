# SPDX-License-Identifier: Apache-2.0
"""Extents times a factor are rounded down, and factors that depend on rounding are refused."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx

from tests.graph.helpers import symbol
from tvm_stitch import compat
from tvm_stitch.importers.symbolic.scaled import Inexact, scaled


@pytest.mark.parametrize(
    ("factor", "given", "wanted"), [(2.0, 7, 14), (0.5, 7, 3), (1.5, 7, 10), (0.75, 9, 6)]
)
def test_extents(factor: float, given: int, wanted: int) -> None:
    assert scaled(given, factor) == wanted
    n = symbol("n")
    value = compat.substitute(scaled(n, factor), {n: tirx.IntImm("int64", given)})
    assert int(tvm.sym.Analyzer().simplify(value)) == wanted


def test_factors_that_are_rounded() -> None:
    with pytest.raises(Inexact, match="a symbolic size times 0.333333 is rounded; give the size"):
        scaled(symbol("n"), 1 / 3)
