# SPDX-License-Identifier: Apache-2.0
"""The code that rules of the data movement family share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.relax.rewriting.movement import (
    COPIES,
    MOVES,
    moved,
    moved_again,
    moves_nothing,
    same_extents,
)
from tvm_stitch.relax.rewriting.operators import operator_name
from tvm_stitch.relax.rewriting.rules import Match, Rule, apply_rules

X = ((2, 3, 4), "float32")
ONES = relax.const(np.ones((3, 3), "float32"))


def exchanged(match: Match) -> Any:
    source, moves = moved(match, match.value.args[0], MOVES)
    return moved_again(match, match.emit(R.exp(source)), moves) if moves else None


def test_moves_are_found_and_repeated_in_order() -> None:
    def before(emit: Any, x: Any) -> list[Any]:
        return [R.exp(emit(R.reshape(emit(R.permute_dims(emit(R.sin(x)), [1, 0, 2])), [6, 4])))]

    def after(emit: Any, x: Any) -> list[Any]:
        return [R.reshape(emit(R.permute_dims(emit(R.exp(emit(R.sin(x)))), [1, 0, 2])), [6, 4])]

    rule = Rule("", exchanged, ("relax.exp",), leaves_unused=True)
    tvm.ir.assert_structural_equal(apply_rules(build(before, X), [rule]), build(after, X))


def test_other_operators_move_nothing() -> None:
    mod = build(lambda emit, x: [R.exp(emit(R.sin(x)))], X)
    assert apply_rules(mod, [Rule("", exchanged, ("relax.exp",))]).same_as(mod)


COPIED = {
    "the shape it has": (lambda x: R.reshape(x, [2, 3, 4]), True),
    "another shape": (lambda x: R.reshape(x, [6, 4]), False),
    "no axis moved": (lambda x: R.permute_dims(x, [0, 1, 2]), True),
    "axes of one extent exchanged": (lambda x: R.permute_dims(ONES, [1, 0]), False),
    "the type it has": (lambda x: R.astype(x, "float32"), True),
    "another type": (lambda x: R.astype(x, "float16"), False),
    "its own shape": (lambda x: R.broadcast_to(x, [2, 3, 4]), True),
    "more of it": (lambda x: R.broadcast_to(x, [5, 2, 3, 4]), False),
}


@pytest.mark.parametrize("name", COPIED)
def test_copies(name: str) -> None:
    operator, expected = COPIED[name]
    mod = build(lambda emit, x: [operator(x)], X)
    (call, *_) = relax.analysis.get_var2val(mod["main"]).values()
    assert operator_name(call) in COPIES and moves_nothing(call) == expected


def test_shapes_that_are_unknown_are_not_the_same() -> None:
    assert same_extents((2, 3), (2, 3)) and not same_extents((2,), (2, 3))
    assert not same_extents(None, None) and not same_extents((2,), None)
