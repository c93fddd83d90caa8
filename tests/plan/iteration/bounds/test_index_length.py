# SPDX-License-Identifier: Apache-2.0
"""Indices that would grow beyond measure when their divisions are lowered."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, symbol
from tvm_stitch.compat import Expr, tir
from tvm_stitch.plan.iteration.bounds.index_length import too_long
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline

I, N = tir.Var("i", "int64"), tir.Var("n", "int64")


def nested(start: Expr, divisor: Any, depth: int) -> Expr:
    for _ in range(depth):
        start = tir.floordiv(start, divisor) - 1
    return start


@pytest.mark.parametrize("depth", [1, 3])
def test_few_divisions_are_short(depth: int) -> None:
    assert not too_long(nested(I, N, depth), CHOICES)


def test_divisions_whose_signs_are_hidden_multiply() -> None:
    assert too_long(nested(I, N, 6), CHOICES)
    assert not too_long(nested(I, 7, 30), CHOICES), "divisions by numbers are single instructions"


def test_divisions_of_what_is_not_negative_add_up() -> None:
    e: Expr = I
    for _ in range(30):
        e = tir.floormod(tir.floordiv(e, N) + 1, N + 1)
    assert not too_long(e, CHOICES)
    for _ in range(CHOICES.index_terms):
        e = e + I * N
    assert too_long(e, CHOICES)


def test_flips_between_reshapes_of_symbols_get_kernels_of_their_own() -> None:
    """In one kernel they took LLVM minutes."""
    n = symbol("n")
    p, q = n // 16, n // 16 + 1

    def body(emit: Any, x: Any, y: Any) -> Any:
        a = emit(R.exp(x))
        for shape, axes in (
            ((q * q, p * q), (1, 0)), ((q * q * p, q), (1, 0)), ((q, q, p * q), (2, 0, 1)),
            (None, None), ((q * q, p * q), (1, 0)), ((q * q * p, q), (1, 0)),
        ):  # fmt: skip
            a = emit(R.flip(a, 0) if shape is None else R.permute_dims(emit(R.reshape(a, shape)), axes))
        return [R.add(a, a)]

    recorder = Recorder()
    mod = build(body, ((q, q, p, q), "float32"), ((n,), "float32"))
    pipeline("llvm", recorder=recorder)(mod)
    assert len(recorder.plans) == 2 and not recorder.declined
    assert any("too many divisions by symbols" in b.reason for b in recorder.boundaries)
