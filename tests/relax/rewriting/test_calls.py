# SPDX-License-Identifier: Apache-2.0
"""Calls of some operators are rewritten, with their operands first. Others stay."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.relax.rewriting.calls import with_bound_calls, with_calls


def doubled(builder: Any, call: Any) -> Any:
    return R.multiply(builder.emit(call), relax.const(2.0, "float32"))


def test_calls_are_rewritten_with_operands_first() -> None:
    mod = build(lambda emit, x: [R.exp(emit(R.exp(emit(R.negative(x)))))], ((4,), "float32"))

    def body(emit: Any, x: Any) -> Any:
        two = relax.const(2.0, "float32")
        inner = emit(R.multiply(emit(R.exp(emit(R.negative(x)))), two))
        return [R.multiply(emit(R.exp(inner)), two)]

    tvm.ir.assert_structural_equal(
        with_calls(mod, ("relax.exp",), doubled, why="a test"), build(body, ((4,), "float32"))
    )


def test_a_module_without_such_calls_stays_itself() -> None:
    mod = build(lambda emit, x: [R.negative(x)], ((4,), "float32"))
    assert with_calls(mod, ("relax.exp",), doubled, why="a test").same_as(mod)


def test_a_rewriting_may_be_given_the_variable_that_a_call_is_bound_to() -> None:
    mod = build(lambda emit, x: [R.exp(emit(R.negative(emit(R.exp(x)))))], ((4,), "float32"))
    seen: list[Any] = []

    def noted(_builder: Any, call: Any, var: Any) -> Any:
        seen.append(var)
        return call

    with_bound_calls(mod, ("relax.exp",), noted, why="a test")
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    assert seen == [binding.var for binding in bindings if str(binding.value.op.name) == "relax.exp"]
