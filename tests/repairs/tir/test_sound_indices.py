# SPDX-License-Identifier: Apache-2.0
"""Indices of buffers keep their values through TVM's normalization of them."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tests.repairs import faults
from tvm_stitch import compat
from tvm_stitch.compat import Analyzer, arith, tir
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.tir.sound_indices import sound_index

I, J, N = (tir.Var(name, "int64") for name in "ijn")
D, M = tir.FloorDiv, tir.FloorMod


def number(value: int) -> Any:
    return compat.const(value, "int64")


def value_of(e: Any, point: tuple[int, int, int]) -> int:
    values = {v: number(p) for v, p in zip((I, J, N), point)}
    return compat.int_value(Analyzer().simplify(compat.substitute(e, values)))


def normalized(e: Any) -> Any:
    """Normalise an index as TVM does when it flattens buffers."""
    analyzer = Analyzer()
    ranges = {v: tvm.ir.Range(number(0), number(n)) for v, n in ((I, 3), (J, 4))}
    for var, range_ in ranges.items():
        analyzer.bind(var, range_)
    return arith.iter_map_simplify([analyzer.simplify(e)], ranges)[0]


def drawn(rng: random.Random) -> Any:
    """Draw a sum divided, once or twice."""
    e = number(rng.randint(-3, 12))
    for var in (I, J, N):
        e = e + var * number(rng.choice([0, 0, -4, -3, -2, -1, 1, 2, 3, 4]))
    for again in range(rng.randint(1, 2)):
        if again:
            e = number(rng.randint(0, 9)) + e * number(rng.choice([-2, -1, 1, 2])) - rng.choice([I, J])
        e = rng.choice([D, M])(e, N if rng.random() < 0.2 else number(rng.choice([2, 3, 4, 6])))
    return e


@pytest.mark.parametrize("seed", range(4))
def test_normalized_indices_are_the_same(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        e = drawn(rng)
        points = list(product(range(3), range(4), (1, 2, 5)))
        want = [value_of(e, point) for point in points]
        assert [value_of(sound_index(e), point) for point in points] == want, str(e)
        there = normalized(sound_index(e))
        assert [value_of(there, point) for point in points] == want, str(e)


@pytest.mark.parametrize(
    "index", [D(I * 4 + J, number(2)), M(D(I, number(2)) * 4 + J, N), D(I + 1, number(2)), I * 2 - J], ids=str
)
def test_what_is_normalized_soundly_is_left(index: Any) -> None:
    assert sound_index(index) is index


def test_what_may_be_negative_does_not_truncate() -> None:
    assert compat.kind(sound_index(D(N - I, number(2))).a) == "Div"
    assert compat.kind(sound_index(D(N - I, number(2)), {N}).a) == "FloorDiv"


@pytest.mark.parametrize("count", [2, 3, 7, 40])
def test_a_flip_behind_a_repetition(count: int) -> None:
    def body(emit: Any, x: Any) -> Any:
        return [emit(R.flip(emit(R.repeat(x, repeats=2, axis=0)), axis=0))]

    executable = relax.build(build(body, ((count,), "int32")), "llvm", relax_pipeline=pipeline("llvm"))
    x = np.arange(5, 5 + count, dtype="int32")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
    np.testing.assert_array_equal(found.numpy(), x.repeat(2)[::-1])


def flipped(passes: Any) -> np.ndarray:
    mod = build(lambda emit, x: R.exp(emit(R.flip(emit(R.repeat(x, 2, 0)), 0))), ((2,), "float32"))
    return faults.on_cpu(mod, [np.array([0, 1], "float32")], passes)[0]


def test_fault() -> None:
    before = D(number(3) - I, number(2))
    after, points = normalized(before), [(i, 0, 1) for i in range(3)]
    is_wrong = any(value_of(before, point) != value_of(after, point) for point in points)
    faults.needed(is_wrong, "tir/sound_indices.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = np.exp(np.array([1, 1, 0, 0], "float32"))
    assert np.allclose(flipped(faults.ours(faults.LLVM)), wanted)
    monkeypatch.setattr(faults.module_of("codegen.evaluator"), "sound_index", lambda index, signed: index)
    assert not np.allclose(flipped(faults.ours(faults.LLVM)), wanted)
