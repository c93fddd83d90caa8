# SPDX-License-Identifier: Apache-2.0
"""Operators of a step that read unchanging values alone are computed once, before the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.relax.loops.modules import run
from tests.relax.loops.test_loop import made
from tvm_stitch.relax.loops.loop import loop
from tvm_stitch.relax.loops.rows import row, scalar

WEIGHTS = relax.Var("w", relax.TensorType([4, 8], "float32"))


def _operators(mod: tvm.IRModule, start: str) -> list[str]:
    """Return the operators of the function whose name begins so."""
    (func,) = [f for g, f in mod.functions_items() if str(g.name_hint).startswith(start)]
    values = [binding.value for block in func.body.blocks for binding in block.bindings]
    return [str(v.op.name) for v in values if isinstance(v, relax.Call) and isinstance(v.op, tvm.ir.Op)]


def _body(builder: relax.BlockBuilder, x: Any, n: Any) -> list[Any]:
    def step(number: Any, unchanging: list[Any], state: list[Any]) -> list[Any]:
        emit = builder.emit
        parts = emit(R.split(unchanging[0], 2, axis=1))
        left, right = (emit(relax.TupleGetItem(parts, i)) for i in range(2))
        weights = emit(R.permute_dims(emit(R.add(left, right))))
        read = row(builder, unchanging[1], number)
        zeros = emit(R.zeros([4], "float32"))
        moved = emit(R.add(emit(R.matmul(state[0], weights)), emit(R.add(read, zeros))))
        return [emit(R.add(moved, emit(R.astype(scalar(builder, number), "float32"))))]

    return loop(builder, "f", n, [relax.const(np.zeros((2, 4), "float32"))], [WEIGHTS, x], step)


def test_operators_move_before_the_loop() -> None:
    mod = made(_body, WEIGHTS)
    assert _operators(mod, "f_before") == ["relax.split", "relax.add", "relax.permute_dims"]
    inside = _operators(mod, "f_step")
    assert "relax.split" not in inside and "relax.permute_dims" not in inside
    assert inside.count("relax.call_tir") == 2  # they depend on the number of the step
    assert "relax.zeros" in inside  # it reads nothing
    executable = tvm_stitch.compile(mod, "llvm")
    generator = np.random.default_rng(0)
    w = (generator.standard_normal((4, 8)) / 3).astype("float32")
    for steps in (0, 1, 6):
        x = generator.standard_normal((steps, 4)).astype("float32")
        wanted = np.zeros((2, 4))
        for number in range(steps):
            wanted = wanted @ (w[:, :4] + w[:, 4:]).T + x[number] + number
        (found,) = run(executable, [tvm.runtime.tensor(x), tvm.runtime.tensor(w)])
        assert np.allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_a_loop_without_fixed_operators_is_as_before() -> None:
    def body(builder: relax.BlockBuilder, x: Any, n: Any) -> list[Any]:
        return loop(builder, "f", n, [x], [], lambda _, unchanging, state: [R.exp(state[0])])

    assert not [g for g in made(body).get_global_vars() if "before" in g.name_hint]
