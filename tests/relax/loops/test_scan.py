# SPDX-License-Identifier: Apache-2.0
"""Loops over rows: results are stacked in place, forwards and backwards, also in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from cuda_emulator import lower, run_lowered
from tests.relax.loops.modules import run
from tests.relax.loops.test_loop import made
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.loops.loop import ChangingState
from tvm_stitch.relax.loops.rows import row, with_row
from tvm_stitch.relax.loops.scan import scan

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


def _step(builder: relax.BlockBuilder) -> Any:
    def step(_: Any, rows: list[Any], unchanging: list[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
        after = builder.emit(R.add(state[0], rows[0]))
        return [after], [after, builder.emit(R.sum(after))]

    return step


def _sums(builder: relax.BlockBuilder, x: Any, n: Any, backwards: tuple[bool, ...] = ()) -> list[Any]:
    first = relax.const(np.zeros(4, "float32"))
    states, stacked = scan(builder, "sums", n, [first], [x], [], _step(builder), backwards=backwards)
    return [*states, *stacked]


@pytest.mark.parametrize("backwards", [(), (True, False, False), (False, True, False), (True, True, True)])
def test_rows(backwards: tuple[bool, ...]) -> None:
    executable = tvm_stitch.compile(made(lambda b, x, n: _sums(b, x, n, backwards)), "llvm")
    reads, writes, totals = backwards or (False, False, False)
    for steps in (0, 1, 5, 300):
        x = np.random.default_rng(steps).integers(-9, 9, (steps, 4)).astype("float32")
        sums = np.cumsum(x[::-1] if reads else x, axis=0)
        wanted = [sums[-1] if steps else np.zeros(4), sums[::-1] if writes else sums]
        wanted.append(sums.sum(1)[::-1] if totals else sums.sum(1))
        for a, b in zip(run(executable, [tvm.runtime.tensor(x)]), wanted, strict=True):
            assert np.array_equal(a.numpy(), b)


def test_results_of_an_ended_loop() -> None:
    """As many results as steps are returned, though the memory is for more."""

    def body(builder: relax.BlockBuilder, x: Any, n: Any) -> list[Any]:
        def step(_: Any, rows: list[Any], unchanging: Any, state: list[Any]) -> tuple[list[Any], list[Any]]:
            total = builder.emit(R.add(state[1], builder.emit(R.sum(rows[0]))))
            return [builder.emit(R.less(total, relax.const(10.0))), total], [rows[0]]

        first = [relax.const(True, "bool"), relax.const(0.0)]
        states, stacked = scan(builder, "until", n, first, [x], [], step, conditional=True)
        return [states[1], *stacked]

    executable = tvm_stitch.compile(made(body), "llvm")
    for steps, taken in ((0, 0), (2, 2), (9, 3)):
        x = np.ones((steps, 4), "float32")
        total, rows = run(executable, [tvm.runtime.tensor(x)])
        assert rows.shape == (taken, 4) and total.numpy() == 4 * taken


def test_a_result_of_unknown_shape_is_refused() -> None:
    def step(_: Any, rows: list[Any], unchanging: Any, state: list[Any]) -> tuple[list[Any], list[Any]]:
        return [], [R.nonzero(rows[0])]

    with pytest.raises(ChangingState, match="result 0 of a step of f is int64"):
        made(lambda builder, x, n: scan(builder, "f", n, [], [x], [], step)[1])


def test_a_row_on_a_gpu() -> None:
    def body(builder: relax.BlockBuilder, x: Any, n: Any) -> list[Any]:
        y = builder.emit(R.exp(x))
        return [with_row(builder, y, row(builder, x, n - 1), n - 2)]

    x = np.random.default_rng(0).standard_normal((5, 4)).astype("float32")
    done = run_lowered(lower(made(body), CUDA, pipeline(CUDA)), [x.copy()])
    done.check()
    wanted = np.exp(x)
    wanted[3] = x[4]
    assert np.allclose(done.outputs[0], wanted, rtol=1e-6)


def test_a_loop_in_the_emulator() -> None:
    x = np.random.default_rng(0).integers(-9, 9, (6, 4)).astype("float32")
    done = run_lowered(lower(made(_sums), CUDA, pipeline(CUDA)), [x.copy()])
    done.check()
    sums = np.cumsum(x, axis=0)
    for a, b in zip(done.outputs, (sums[-1], sums, sums.sum(1)), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("count", [3, 12])
def test_a_known_number_of_steps(count: int) -> None:
    """Rows are written in place, and memory that is used later does not overlap them."""

    def body(builder: relax.BlockBuilder, x: Any, n: Any) -> list[Any]:
        states, (sums, totals) = scan(
            builder, "sums", count, [relax.const(np.zeros(4, "float32"))], [x], [], _step(builder)
        )
        other = builder.emit(R.matmul(R.reshape(sums, [count, 4]), relax.const(np.eye(4, dtype="float32"))))
        third = builder.emit(R.matmul(other, relax.const(2 * np.eye(4, dtype="float32"))))
        return [*states, sums, totals, third]

    x = np.random.default_rng(0).integers(-9, 9, (count, 4)).astype("float32")
    sums = np.cumsum(x, axis=0)
    found = run(tvm_stitch.compile(made(body), "llvm"), [tvm.runtime.tensor(x)])
    for a, b in zip(found, (sums[-1], sums, sums.sum(1), 2 * sums), strict=True):
        assert np.array_equal(a.numpy(), b)


def test_two_results_of_one_shape_have_memory_of_their_own() -> None:
    def body(builder: relax.BlockBuilder, x: Any, n: Any) -> list[Any]:
        def step(_: Any, rows: list[Any], unchanging: Any, state: list[Any]) -> tuple[list[Any], list[Any]]:
            return [], [R.negative(rows[0]), R.exp(rows[0])]

        return scan(builder, "two", n, [], [x], [], step)[1]

    x = np.random.default_rng(0).standard_normal((7, 4)).astype("float32")
    found = run(tvm_stitch.compile(made(body), "llvm"), [tvm.runtime.tensor(x)])
    assert np.array_equal(found[0].numpy(), -x)
    assert np.allclose(found[1].numpy(), np.exp(x), rtol=1e-6)
