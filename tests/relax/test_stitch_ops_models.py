# SPDX-License-Identifier: Apache-2.0
"""StitchOps on models built from Relax operators: constants, views, symbols, random graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as Rop

from stitch_testing.random.graphs import random_graph
from tests.graph.helpers import build, legalize
from tests.relax.modules import main_calls, outlined, run
from tvm_stitch.records.decisions import decisions_of
from tvm_stitch.relax.stitch.stitch_ops import StitchOps

F32 = "float32"


def test_constants_are_arguments() -> None:
    table = np.arange(32, dtype=F32).reshape(4, 8)
    mod = legalize(build(lambda emit, x: Rop.exp(emit(Rop.add(x, relax.const(table)))), ((4, 8), F32)))
    after = run(mod)
    (calls,) = outlined(after).values()
    assert len(calls) == 2
    (call,) = [
        b.value for blk in after["main"].body.blocks for b in blk.bindings if isinstance(b.value, relax.Call)
    ]
    assert [type(a).__name__ for a in call.args].count("Var") == 1 and len(call.args) == 2
    np.testing.assert_array_equal(call.args[1].value.numpy(), table)


def test_split_and_scalars() -> None:
    def body(emit: Any, x: Any, s: Any) -> Any:
        parts = emit(Rop.split(x, 2, 1))
        a, b = emit(relax.TupleGetItem(parts, 0)), emit(relax.TupleGetItem(parts, 1))
        return [Rop.add(emit(Rop.multiply(a, s)), b), Rop.exp(b)]

    after = run(legalize(build(body, ((4, 8), F32), ((), F32))))
    assert len(outlined(after)) == 1 and len(main_calls(after)) == 1


def test_reshapes_at_a_border_stay_views() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(Rop.reshape(emit(Rop.exp(x)), (8, 4)))
        z = emit(Rop.reshape(emit(Rop.matmul(y, w)), (2, 16)))
        return [Rop.multiply(z, emit(Rop.sum(z, -1, True)))]

    after = run(legalize(build(body, ((4, 8), F32), ((4, 4), F32))))
    # Behind exp it is left to TVM. In front of the sum it is an index map of the kernel, which costs nothing
    # either.
    assert sorted(map(len, outlined(after).values())) == [1, 3]
    views = [c for c in main_calls(after) if "reshape" in c and "stitch" not in c]
    assert len(views) == 1 and "relax.reshape" in views[0]


def qkv() -> tvm.IRModule:
    """Attention over queries, keys and values that are views of one call's three results."""

    def body(emit: Any, x: Any) -> Any:
        parts = emit(Rop.split(emit(Rop.exp(x)), 3, 0))
        q, k, v = (emit(Rop.squeeze(emit(relax.TupleGetItem(parts, i)), [0])) for i in range(3))
        scores = emit(Rop.matmul(q, emit(Rop.permute_dims(k))))
        return [Rop.matmul(emit(Rop.nn.softmax(scores)), v)]

    return build(body, ((3, 4, 8), F32))


def test_views_of_one_of_several_results() -> None:
    after = run(legalize(qkv()))
    assert len(outlined(after)) == 2
    assert [c for c in main_calls(after) if "reshape" in c]  # of the values, outside every kernel


def test_views_of_one_of_several_results_of_a_call_that_is_left() -> None:
    mod = legalize(qkv())
    scopes = decisions_of(StitchOps()(mod)).outlined
    (split,) = [scope for name, scope in scopes.items() if "split" in name]
    after = StitchOps(exclude=[split])(mod)
    assert relax.analysis.check_well_formed(after)
    assert len(outlined(after)) == 1 and "split" in main_calls(after)


def test_bias_and_activation_after_a_matmul() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return [Rop.nn.relu(emit(Rop.add(emit(Rop.matmul(x, w)), b)))]

    after = run(legalize(build(body, ((4, 8), F32), ((8, 16), F32), ((16,), F32))))
    assert outlined(after) == {} and len(main_calls(after)) == 1


def test_symbolic_shapes() -> None:
    n = tvm.tirx.Var("n", "int64")

    def body(emit: Any, x: Any) -> Any:
        e = emit(Rop.exp(emit(Rop.subtract(x, emit(Rop.max(x, -1, True))))))
        return [Rop.divide(e, emit(Rop.sum(e, -1, True)))]

    after = run(legalize(build(body, ((n, 8), F32))))
    assert len(outlined(after)) == 1 and len(main_calls(after)) == 1


def test_symbols_that_no_tensor_argument_carries_are_passed() -> None:
    n = tvm.tirx.Var("n", "int64")

    def body(emit: Any, x: Any, y: Any) -> Any:
        flat = emit(Rop.reshape(y, (4 * n,)))
        return [Rop.exp(emit(Rop.add(flat, emit(Rop.sum(x)))))]

    run(legalize(build(body, ((3,), F32), ((n, 4), F32))))

    def spread(emit: Any, x: Any, y: Any) -> Any:
        return [Rop.broadcast_to(emit(Rop.exp(x)), (n, 3)), Rop.exp(y)]

    after = run(legalize(build(spread, ((1, 3), F32), ((n, 4), F32))), horizontal_fusion=False)
    assert any("broadcast_to" in c for calls in outlined(after).values() for c in calls)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_graphs_stay_well_formed(first: int) -> None:
    for seed in range(first, first + 10):
        after = run(legalize(random_graph(seed, max_elements=500).mod))
        assert outlined(after)
