# SPDX-License-Identifier: Apache-2.0
"""Equal calls are legalized once, and the module is the one that TVM's legalization makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch.relax.legalize.operators import LEGALIZED
from tvm_stitch.relax.legalize.repeated import LegalizeOnce

X = ((8, 16), "float32")
N = symbol("n")


def counted(name: str) -> tuple[list[int], Callable[[Any, Any], Any]]:
    """Return a list that gets an entry for each call that is legalized, and TVM's legalization of an operator."""
    seen: list[int] = []

    def legalize(builder: Any, call: Any) -> Any:
        seen.append(1)
        return tvm.ir.Op.get(name).get_attr("FLegalize")(builder, call)

    return seen, legalize


def same_as_tvm(mod: tvm.IRModule) -> None:
    tvm.ir.assert_structural_equal(LegalizeOnce(LEGALIZED)(mod), relax.transform.LegalizeOps(LEGALIZED)(mod))


def scalars(emit: Any, x: Any) -> list[Any]:
    numbers = (1.5, 2.5, 1.5)
    for number in numbers:
        x = emit(R.multiply(x, relax.const(number, "float32")))
    return [R.add(x, emit(R.multiply(relax.const(1.5, "float32"), x)))]


def constants(emit: Any, x: Any) -> list[Any]:
    for value in (1.0, 2.0):
        x = emit(R.add(x, relax.const(np.full(16, value, "float32"))))
        x = emit(R.add(relax.const(np.full(16, value, "float32")), x))
    return [x]


def indices(emit: Any, x: Any) -> list[Any]:
    rows = [emit(R.take(x, relax.const(np.array([row])), 0)) for row in (0, 3, 3)]
    return [R.concat(rows, 0)]


def attributes(emit: Any, x: Any) -> list[Any]:
    return [R.add(emit(R.sum(x, axis, keepdims=True)), x) for axis in (0, 1, 0, -1)]


def shapes(emit: Any, x: Any) -> list[Any]:
    y = emit(R.reshape(x, (16, 8)))
    z = emit(R.reshape(emit(R.exp(x)), (4, 32)))
    return [R.exp(y), R.exp(z), R.reshape(emit(R.reshape(y, (8, 16))), (16, 8))]


def twice(emit: Any, x: Any) -> list[Any]:
    y = emit(R.multiply(x, x))
    return [R.multiply(x, y), R.multiply(y, x), R.multiply(y, y)]


def parts(emit: Any, x: Any) -> list[Any]:
    halves = emit(R.split(x, 2, 1))
    left, right = emit(halves[0]), emit(halves[1])
    return [R.concat([left, right], 0), R.concat([right, left], 0), R.concat([left, right, right], 1)]


def norms(emit: Any, x: Any) -> list[Any]:
    for value in (1.0, 2.0):
        gamma, beta = (relax.const(np.full(16, value + i, "float32")) for i in range(2))
        x = emit(R.nn.layer_norm(x, gamma, beta, [-1]))
    return [x]


@pytest.mark.parametrize("body", [scalars, constants, indices, attributes, shapes, twice, parts, norms])
def test_the_module_is_that_of_tvm(body: Callable[..., list[Any]]) -> None:
    same_as_tvm(build(body, X))


def test_symbolic_extents() -> None:
    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        x = emit(R.exp(emit(R.exp(x))))
        return [R.add(x, y), R.add(y, x), R.reshape(x, (N * 4, 4)), R.reshape(emit(R.exp(x)), (N * 4, 4))]

    same_as_tvm(build(body, ((N, 16), "float32"), ((N, 1), "float32")))


def test_equal_calls_are_legalized_once() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        for _ in range(5):
            x = emit(R.exp(x))
        return [R.exp(emit(R.sum(x, 0)))]

    seen, legalize = counted("relax.exp")
    LegalizeOnce({"relax.exp": legalize})(build(body, X))
    assert len(seen) == 2


def test_what_reads_other_constants_is_legalized_again() -> None:
    seen, legalize = counted("relax.take")
    LegalizeOnce({"relax.take": legalize})(build(indices, X))
    assert len(seen) == 3


def test_bindings_of_a_legalization_are_made_for_each_call() -> None:
    def slow(builder: Any, call: Any) -> Any:
        return R.negative(builder.emit(R.sin(call.args[0])))

    def body(emit: Any, x: Any) -> list[Any]:
        return [R.exp(emit(R.exp(x)))]

    made = LegalizeOnce({"relax.exp": slow})(build(body, X))
    bindings = [b for block in made["main"].body.blocks for b in block.bindings]
    assert [b.value.args[0].name_hint for b in bindings] == ["tir_sin", "tir_negative"] * 2


def test_functions_that_are_operands_are_called_as_before() -> None:
    tensor = relax.TensorType((4,), "float32")
    f, x = relax.Var("f", relax.FuncType([tensor], tensor)), relax.Var("x", tensor)
    builder = relax.BlockBuilder()
    with builder.function("main", [f, x]):
        builder.emit_func_output(builder.emit(R.exp(builder.emit(relax.Call(f, [x])))))
    same_as_tvm(builder.get())
