# SPDX-License-Identifier: Apache-2.0
"""Indices carried through reshapes: merged, split again, and never split where they run over less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import tirx
from tvm.relax import op as R

from tests.graph.helpers import build, check_emulated, draw
from tvm_stitch import compat
from tvm_stitch.compat import Analyzer
from tvm_stitch.plan.iteration.reshape import IndexReshaper

F32 = "float32"


def value(index: Any, at: dict[Any, int]) -> int:
    values = {v: compat.const(n, "int64") for v, n in at.items()}
    return int(Analyzer().simplify(compat.substitute(index, values)))


def test_a_merged_index_is_split_into_its_parts() -> None:
    i, j = tirx.Var("i", "int64"), tirx.Var("j", "int64")
    reshaper = IndexReshaper(Analyzer())
    (merged,) = reshaper.reshape([i, j], [4, 6], [24])
    assert [str(e) for e in reshaper.reshape([merged], [24], [4, 6])] == ["i", "j"]


def test_extents_of_one_are_passed_over() -> None:
    i, j = tirx.Var("i", "int64"), tirx.Var("j", "int64")
    reshaper = IndexReshaper(Analyzer())
    assert [str(e) for e in reshaper.reshape([i], [6], [1, 6, 1])] == ["T.int64(0)", "i", "T.int64(0)"]
    zero = compat.const(0, "int64")
    assert [str(e) for e in reshaper.reshape([i, zero, j], [4, 1, 6], [4, 6])] == ["i", "j"]


def test_a_merged_index_is_whole_in_a_narrower_space() -> None:
    """As in the first operand of a concatenation, which has fewer rows than all operands together."""
    i, j, k = (tirx.Var(name, "int64") for name in "ijk")
    reshaper = IndexReshaper(Analyzer())
    row, column = reshaper.reshape([i, j, k], [2, 3, 100], [6, 100])
    found = reshaper.reshape([row, column], [2, 100], [2, 100])
    at = {i: 0, j: 1, k: 7}
    assert [value(e, at) for e in found] == [1, 7]


def concat_of_rows(emit: Callable[..., Any], x: Any, scale: Any) -> Any:
    y = emit(R.minimum(x, scale))
    y = emit(R.subtract(emit(R.abs(y)), y))
    return emit(R.broadcast_to(emit(R.reshape(emit(R.concat([y, y, y], 0)), (2, 3, 100))), (2, 2, 3, 100)))


def concat_of_several(emit: Callable[..., Any], x: Any, scale: Any) -> Any:
    y = emit(R.subtract(x, scale))
    joined = emit(R.concat([emit(R.exp(y)), emit(R.abs(y)), y], 0))
    turned = emit(R.permute_dims(emit(R.reshape(joined, (3, 2, 2, 50))), (3, 1, 0, 2)))
    return emit(R.add(turned, turned))


@pytest.mark.parametrize("body", [concat_of_rows, concat_of_several])
def test_concatenations_below_reshapes(body: Callable[..., Any]) -> None:
    specs = [((2, 100), F32), ((100,), F32)]
    check_emulated(build(body, *specs), draw(specs))


def test_what_was_merged_in_one_column_space_is_not_split_in_another() -> None:
    """The first six columns of <4, 6> are the column, and so are the 24 columns of another tensor."""
    zero, column = compat.const(0, "int64"), tirx.Var("col", "int64")
    reshaper = IndexReshaper(Analyzer())
    (merged,) = reshaper.reshape([zero, column], [4, 6], [24], 6)
    assert [str(e) for e in reshaper.reshape([merged], [24], [4, 6], 6)] == ["T.int64(0)", "col"]
    found = reshaper.reshape([column], [24], [4, 6], 24)
    assert [value(e, {column: 23}) for e in found] == [3, 5]


def test_symbols_of_one_name_are_told_apart() -> None:
    i, j, n, other = (tirx.Var(name, "int64") for name in "ijnn")
    reshaper = IndexReshaper(Analyzer())
    (merged,) = reshaper.reshape([i, j], [4, n], [n * 4])
    (unlike,) = reshaper.reshape([i, j], [4, other], [other * 4])
    assert str(merged) == str(unlike)
    assert [str(e) for e in reshaper.reshape([merged], [n * 4], [4, n])] == ["i", "j"]
    assert [str(e) for e in reshaper.reshape([unlike], [other * 4], [4, other])] == ["i", "j"]
    (index,) = reshaper.reshape([i * other + j], [n * 4], [n * 4])
    assert len(reshaper.merged) == 2 and index is not merged
