# SPDX-License-Identifier: Apache-2.0
"""bfloat16 inputs in registers are read as words of two elements, whole vectors of them or not."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from tests.codegen.gpu.emulated import TOLERANCE, checked

EXACT = {"float32": (0, 0)}
MASK = str(0xFFFF0000)


def widened(emit: Any, x: Any) -> Any:
    return emit(R.negative(emit(R.astype(x, "float32"))))


def norm(emit: Any, x: Any, w: Any) -> Any:
    return emit(R.nn.rms_norm(x, w, axes=[-1]))


@pytest.mark.parametrize(("columns", "pairs"), [(1024, True), (998, True), (997, False)])
def test_each_element_is_its_own_half_of_a_word(columns: int, pairs: bool) -> None:
    source = checked(widened, EXACT, ((511, columns), "bfloat16"))
    assert (MASK in source) == pairs
    assert ("(float)x0" in source) != pairs


@pytest.mark.parametrize("columns", [776, 2048, 4095, 8192])
def test_rows_and_what_they_share(columns: int) -> None:
    source = checked(norm, TOLERANCE, ((3, columns), "bfloat16"), ((columns,), "bfloat16"))
    assert (MASK in source) == (columns % 2 == 0)


def test_other_half_types_are_converted() -> None:
    source = checked(widened, EXACT, ((512, 1024), "float16"))
    assert MASK not in source and "(float)" in source


def test_rows_that_are_only_reduced_are_converted() -> None:
    def total(emit: Any, x: Any) -> Any:
        return emit(R.sum(emit(R.astype(x, "float32")), axis=[-1]))

    assert MASK not in checked(total, TOLERANCE, ((511, 1024), "bfloat16"))


def test_no_choice_is_left_between_the_halves() -> None:
    source = checked(norm, TOLERANCE, ((3, 40_000), "bfloat16"), ((40_000,), "bfloat16"))
    assert MASK in source
    assert not [line for line in source.splitlines() if "__uint_as_float" in line and "?" in line]


def test_a_result_does_not_take_the_place_of_what_another_one_reads() -> None:
    """The first result of an element is stored before the bias of that element is read."""

    def two(emit: Any, x: Any, w: Any, bias: Any) -> Any:
        normed = norm(emit, x, w)
        turned = emit(R.reshape(emit(R.concat(emit(R.split(normed, 2, axis=-1)), axis=-1)), (3, 32)))
        return [turned, emit(R.add(turned, bias))]

    checked(two, TOLERANCE, ((3, 32), "bfloat16"), ((32,), "bfloat16"), ((32,), "bfloat16"))
