# SPDX-License-Identifier: Apache-2.0
"""Two graphs have one fingerprint only if they compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm.relax import op as R

from tests.graph.helpers import build, graph
from tvm_stitch import compat
from tvm_stitch.graph.fingerprint import fingerprint

Body = Callable[[Any, Any], list[Any]]
SHAPE = (4, 6), "float32"


def of_exp(emit: Any, x: Any) -> list[Any]:
    t = emit(R.tanh(x))
    return [R.divide(t, emit(R.sum(emit(R.exp(t)), -1, True)))]


def of_tanh(emit: Any, x: Any) -> list[Any]:
    t = emit(R.tanh(x))
    return [R.divide(emit(R.exp(t)), emit(R.sum(t, -1, True)))]


def of_sin(emit: Any, x: Any) -> list[Any]:
    t = emit(R.tanh(x))
    return [R.divide(t, emit(R.sum(emit(R.sin(t)), -1, True)))]


def by_columns(emit: Any, x: Any) -> list[Any]:
    t = emit(R.tanh(x))
    return [R.divide(t, emit(R.sum(emit(R.exp(t)), 0, True)))]


def of_maximum(emit: Any, x: Any) -> list[Any]:
    t = emit(R.tanh(x))
    return [R.divide(t, emit(R.max(emit(R.exp(t)), -1, True)))]


BODIES = [of_exp, of_tanh, of_sin, by_columns, of_maximum]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_read_again_it_is_the_same(body: Body) -> None:
    assert fingerprint(graph(build(body, SHAPE))) == fingerprint(graph(build(body, SHAPE)))


def test_all_others_differ() -> None:
    graphs = [graph(build(body, SHAPE)) for body in BODIES]
    graphs += [graph(build(of_exp, ((4, 6), "float64"))), graph(build(of_exp, ((4, 7), "float32")))]
    assert len({fingerprint(g) for g in graphs}) == len(graphs)


def test_symbols_are_told_apart() -> None:
    """Sums over the one axis of a square or over the other, and of what is no square."""
    n, m = (compat.tir.Var(name, "int64") for name in "nm")
    shapes = [(n, m), (m, n), (n, n), (n, n * 2)]
    found = [
        fingerprint(graph(build(body, (shape, "float32"))))
        for shape in shapes
        for body in (of_exp, by_columns)
    ]
    assert len(set(found)) == len(found) - 2  # what a symbol is called makes no difference
