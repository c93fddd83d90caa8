# SPDX-License-Identifier: Apache-2.0
"""Loops: their functions before and after compilation, many steps, conditions, and states that change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS
from tvm.script import tirx as T

import tvm_stitch
from tests.relax.loops.modules import run
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.loops.loop import ChangingState, loop

LLVM = tvm.target.Target("llvm")


@I.ir_module
class Doubling:
    """x doubled as often as x has rows."""

    @RS.function(private=True)
    def doubling(at: RS.Shape(["steps", "n"]), v0: RS.Tensor(("n", 4), "float32")) -> RS.Tuple(
        RS.Tensor(("n", 4), "float32")
    ):
        steps, n = T.int64(), T.int64()
        cls = Doubling
        if RS.prim_value(steps <= 0):
            none = (v0,)
            kept: RS.Tuple(RS.Tensor((n, 4), "float32")) = none
            result: RS.Tuple(RS.Tensor((n, 4), "float32")) = kept
        else:
            some: RS.Tuple(RS.Tensor((n, 4), "float32")) = cls.doubling_loop(RS.shape([0, steps, n]), v0)
            done: RS.Tuple(RS.Tensor((n, 4), "float32")) = some
            result: RS.Tuple(RS.Tensor((n, 4), "float32")) = done
        last: RS.Tuple(RS.Tensor((n, 4), "float32")) = result
        return last

    @RS.function(private=True)
    def doubling_loop(at: RS.Shape(["first", "steps", "n"]), v0: RS.Tensor(("n", 4), "float32")) -> RS.Tuple(
        RS.Tensor(("n", 4), "float32")
    ):
        first, steps, n = T.int64(), T.int64(), T.int64()
        cls = Doubling
        if RS.prim_value(steps <= 1):
            one: RS.Tuple(RS.Tensor((n, 4), "float32")) = cls.doubling_step(RS.shape([first, n]), v0)
            single: RS.Tuple(RS.Tensor((n, 4), "float32")) = one
            result: RS.Tuple(RS.Tensor((n, 4), "float32")) = single
        else:
            half: RS.Tuple(RS.Tensor((n, 4), "float32")) = cls.doubling_loop(
                RS.shape([first, steps // 2, n]), v0
            )
            middle: RS.Tensor((n, 4), "float32") = half[0]
            rest: RS.Tuple(RS.Tensor((n, 4), "float32")) = cls.doubling_loop(
                RS.shape([first + steps // 2, steps - steps // 2, n]), middle
            )
            both: RS.Tuple(RS.Tensor((n, 4), "float32")) = rest
            result: RS.Tuple(RS.Tensor((n, 4), "float32")) = both
        last: RS.Tuple(RS.Tensor((n, 4), "float32")) = result
        return last

    @RS.function(private=True)
    def doubling_step(at: RS.Shape(["first", "n"]), v0: RS.Tensor(("n", 4), "float32")) -> RS.Tuple(
        RS.Tensor(("n", 4), "float32")
    ):
        first, n = T.int64(), T.int64()  # noqa: F841
        with RS.dataflow():
            twice: RS.Tensor((n, 4), "float32") = RS.add(v0, v0)
            after: RS.Tuple(RS.Tensor((n, 4), "float32")) = (twice,)
            RS.output(after)
        return after

    @RS.function
    def main(x: RS.Tensor(("n", 4), "float32")) -> RS.Tensor(("n", 4), "float32"):
        n = T.int64()
        cls = Doubling
        with RS.dataflow():
            done: RS.Tuple(RS.Tensor((n, 4), "float32")) = cls.doubling(RS.shape([n, n]), x)
            last: RS.Tensor((n, 4), "float32") = done[0]
            result: RS.Tensor((n, 4), "float32") = last
            RS.output(result)
        return result


def made(body: Callable[[relax.BlockBuilder, Any, Any], list[Any]], *more: relax.Var) -> tvm.IRModule:
    """Return a module whose main takes x <n,4> and ``more``, and returns what ``body`` makes of builder, x and n."""
    builder, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 4], "float32"))
    with builder.function("main", [x, *more]):
        with builder.dataflow():
            results = body(builder, x, n)
            result = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        builder.emit_func_output(result)
    mod = builder.get()
    relax.analysis.well_formed(mod)
    return mod


def doubling(builder: relax.BlockBuilder, x: Any, count: Any) -> list[Any]:
    def step(_: Any, unchanging: list[Any], state: list[Any]) -> list[Any]:
        return [R.add(state[0], state[0])]

    return loop(builder, "doubling", count, [x], [], step)


def test_functions_of_a_loop() -> None:
    tvm.ir.assert_structural_equal(made(doubling), Doubling)


def test_a_step_is_stitched() -> None:
    def step(_: Any, unchanging: list[Any], state: list[Any]) -> list[Any]:
        return [R.nn.softmax(R.multiply(R.exp(state[0]), unchanging[0]))]

    mod = made(lambda builder, x, n: loop(builder, "f", n, [x], [relax.const(0.1, "float32")], step))
    after = pipeline(LLVM)(mod)
    (body,) = [f for g, f in after.functions_items() if g.name_hint.startswith("f_step")]
    calls = [b.value for block in body.body.blocks for b in block.bindings]
    kernels = [str(c.op.name_hint) for c in calls if isinstance(getattr(c, "op", None), tvm.ir.GlobalVar)]
    assert [name for name in kernels if name != "shape_func"] == ["stitch_exp_multiply_softmax"]
    assert count_kernels(mod, LLVM, pipeline(LLVM)).total == 1


def test_a_report_has_the_kernels_of_a_step() -> None:
    report = tvm_stitch.explain(made(doubling), LLVM)
    text = str(report)
    assert "1 kernel" in text and "outside the module" not in text


def test_many_steps() -> None:
    """A function that called itself once for each step died between 300 and 3,000 steps."""

    def body(builder: relax.BlockBuilder, x: Any, n: Any) -> list[Any]:
        def step(_: Any, unchanging: list[Any], state: list[Any]) -> list[Any]:
            return [R.add(state[0], unchanging[0])]

        return loop(builder, "sum", n, [relax.const(np.zeros(1, "float32"))], [relax.const(1.0)], step)

    executable = tvm_stitch.compile(made(body), LLVM)
    for steps in (0, 1, 2, 3, 1000, 20000):
        (total,) = run(executable, [tvm.runtime.tensor(np.zeros((steps, 4), "float32"))])
        assert total.numpy() == steps


@pytest.mark.parametrize("count", [None, 5])
def test_a_condition_ends_a_loop(count: int | None) -> None:
    limit = relax.Var("limit", relax.TensorType([], "float32"))

    def body(builder: relax.BlockBuilder, x: Any, n: Any) -> list[Any]:
        def below(value: Any, most: Any) -> Any:
            return builder.emit(R.less(builder.emit(R.max(value)), most))

        def step(_: Any, unchanging: list[Any], state: list[Any]) -> list[Any]:
            after = builder.emit(R.add(state[1], state[1]))
            return [below(after, unchanging[0]), after]

        return loop(builder, "while", count, [below(x, limit), x], [limit], step, conditional=True)[1:]

    executable = tvm_stitch.compile(made(body, limit), LLVM)
    x = np.arange(1, 9, dtype="float32").reshape(2, 4) / 8
    for most in (0.5, 1.5, 3.0, 100.0, 1e9):
        wanted, steps = x, 0
        while wanted.max() < np.float32(most) and steps != count:
            wanted, steps = wanted + wanted, steps + 1
        (found,) = run(executable, [tvm.runtime.tensor(x), tvm.runtime.tensor(np.array(most, "float32"))])
        assert np.array_equal(found.numpy(), wanted)


def test_a_state_that_changes_is_refused() -> None:
    def grow(_: Any, unchanging: list[Any], state: list[Any]) -> list[Any]:
        return [R.concat([state[0], state[0]])]

    with pytest.raises(
        ChangingState, match=r"state 0 of f is float32 \[n, .*4.*\] before a step and float32 \["
    ):
        made(lambda builder, x, n: loop(builder, "f", n, [x], [], grow))

    def cast(_: Any, unchanging: list[Any], state: list[Any]) -> list[Any]:
        return [R.astype(state[0], "float16")]

    with pytest.raises(ChangingState, match="float16"):
        made(lambda builder, x, n: loop(builder, "f", n, [x], [], cast))
    with pytest.raises(ChangingState, match="returns 0 states and takes 1"):
        made(lambda builder, x, n: loop(builder, "f", n, [x], [], lambda *_: []))


def test_few_known_steps_are_written_one_by_one() -> None:
    def body(count: int) -> tvm.IRModule:
        return made(lambda builder, x, n: doubling(builder, x, count))

    assert len(body(8).functions) == 1 and len(body(9).functions) == 4
    x = np.ones((2, 4), "float32")
    for count in (1, 8, 9):
        (found,) = run(tvm_stitch.compile(body(count), LLVM), [tvm.runtime.tensor(x)])
        assert np.array_equal(found.numpy(), x * 2**count)


def test_no_steps_need_no_loop() -> None:
    assert len(made(lambda builder, x, n: doubling(builder, x, 0)).functions) == 1
