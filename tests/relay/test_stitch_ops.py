# SPDX-License-Identifier: Apache-2.0
"""StitchOps alone: outlined functions before and after, with lets, branches and tuples, and values that stay."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relay

from stitch_testing.workloads.equivalents import stitched_functions
from tvm_stitch import StitchConfig
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.relay import StitchOps
from tvm_stitch.relay.stitch_ops import RESHAPE_ONLY, STITCH_ATTR

F32 = "float32"


def tensor(name: str, *shape: int, dtype: str = F32) -> Any:
    return relay.var(name, shape=shape, dtype=dtype)


def module(body: Any, *params: Any) -> tvm.IRModule:
    return relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(list(params), body)))


def outlined(body: Any, *params: Any, name: str | None = None) -> Any:
    func = relay.Function(list(params), body).with_attr("Primitive", tvm.tir.IntImm("int32", 1))
    return func if name is None else func.with_attr(STITCH_ATTR, name)


def check(before: tvm.IRModule, after: tvm.IRModule, **options: Any) -> None:
    found = without_decisions(StitchOps(target="llvm", **options)(before))
    tvm.ir.assert_structural_equal(found, relay.transform.InferType()(after), map_free_vars=True)


def test_everything_between_two_matmuls_is_one_function() -> None:
    def wanted(x: Any) -> Any:
        return relay.nn.softmax(relay.exp(x) * relay.const(0.5))

    x, w = tensor("x", 4, 8), tensor("w", 8, 8)
    before = module(relay.nn.dense(wanted(relay.nn.dense(x, w)), w), x, w)
    x, w, p = tensor("x", 4, 8), tensor("w", 8, 8), tensor("p0", 4, 8)
    call = relay.Call(outlined(wanted(p), p, name="main/1"), [relay.nn.dense(x, w)])
    check(before, module(relay.nn.dense(call, w), x, w))


def test_a_bias_stays_with_its_matmul() -> None:
    x, w, b = tensor("x", 4, 8), tensor("w", 8, 8), tensor("b", 8)
    before = module(relay.add(relay.nn.dense(x, w), b), x, w, b)
    x, w, b = tensor("x", 4, 8), tensor("w", 8, 8), tensor("b", 8)
    p = [tensor("p0", 4, 8), tensor("p1", 8, 8), tensor("p2", 8)]
    func = outlined(relay.add(relay.nn.dense(p[0], p[1]), p[2]), *p)
    check(before, module(relay.Call(func, [x, w, b]), x, w, b))


def test_results_that_others_read_leave_as_a_tuple() -> None:
    x, w = tensor("x", 4, 8), tensor("w", 8, 8)
    e = relay.exp(x)
    before = module(relay.Tuple([relay.nn.dense(e, w), relay.sum(e, axis=1)]), x, w)
    x, w, p = tensor("x", 4, 8), tensor("w", 8, 8), tensor("p0", 4, 8)
    e = relay.exp(p)
    call = relay.Call(outlined(relay.Tuple([e, relay.sum(e, axis=1)]), p, name="main/0"), [x])
    after = relay.Tuple([relay.nn.dense(relay.TupleGetItem(call, 0), w), relay.TupleGetItem(call, 1)])
    check(before, module(after, x, w))


def test_tuples_of_split_and_concatenate_vanish() -> None:
    x = tensor("x", 4, 8)
    halves = relay.split(x, 2, axis=1)
    mod = StitchOps(target="llvm")(module(relay.concatenate([halves[1], halves[0]], axis=1), x))
    (func,) = stitched_functions(mod)
    assert len(func.params) == 1 and isinstance(mod["main"].body, relay.Call)


def test_bindings_stay_and_scopes_cross_them() -> None:
    x, a, b = tensor("x", 4, 8), relay.Var("a"), relay.Var("b")
    body = relay.Let(
        a, relay.exp(x), relay.Let(b, relay.sum(a, axis=1), relay.add(a, relay.expand_dims(b, 1)))
    )
    mod = StitchOps(target="llvm")(module(body, x))
    (func,) = stitched_functions(mod)
    assert "exp" in str(func) and "sum" in str(func) and "add" in str(func)


def test_branches_are_stitched_on_their_own() -> None:
    x, flag = tensor("x", 4, 8), relay.var("flag", relay.TensorType((), "bool"))
    branch = relay.If(flag, relay.nn.softmax(relay.exp(x)), relay.nn.softmax(relay.tanh(x)))
    mod = StitchOps(target="llvm")(module(relay.sum(branch, axis=1), x, flag))
    assert len(stitched_functions(mod)) == 3


def test_closures_keep_what_they_refer_to() -> None:
    x, e, y = tensor("x", 4, 8), relay.Var("e"), tensor("y", 4, 8)
    closure = relay.Function([y], relay.add(y, e))
    body = relay.Let(e, relay.exp(x), relay.Call(closure, [relay.sqrt(e)]))
    mod = StitchOps(target="llvm")(module(body, x))
    assert relay.analysis.well_formed(mod["main"]) and not relay.analysis.free_vars(mod["main"])


def test_shapes_known_at_run_time_are_left() -> None:
    x = relay.var("x", relay.TensorType((relay.Any(), 8), F32))
    mod = StitchOps(target="llvm")(module(relay.exp(x), x))
    assert not stitched_functions(mod) and "run time" in decisions_of(mod).left["exp"]


def test_functions_that_are_outlined_already_are_left() -> None:
    x, p = tensor("x", 4, 8), tensor("p", 4, 8)
    mod = module(relay.Call(outlined(relay.exp(relay.exp(p)), p), [x]), x)
    tvm.ir.assert_structural_equal(without_decisions(StitchOps(target="llvm")(mod)), mod)


def test_a_reshape_of_one_result_of_several_stays_a_view() -> None:
    x, w = tensor("x", 4, 8), tensor("w", 8, 8)
    e = relay.exp(x)
    back = relay.reshape(relay.sqrt(e), (2, 2, 8))
    out = relay.Tuple([relay.nn.dense(e, w), relay.nn.batch_matmul(back, back)])
    text = str(StitchOps(target="llvm")(module(out, x, w)))
    assert f"{RESHAPE_ONLY}" in text


def test_scopes_can_be_excluded_and_boundaries_are_told() -> None:
    x, w = tensor("x", 4, 8), tensor("w", 8, 8)
    mod = module(relay.nn.softmax(relay.nn.dense(relay.exp(x), w)), x, w)
    found = StitchOps(StitchConfig(), "llvm")(mod)
    boundaries = decisions_of(found).boundaries
    (name, *_) = [str(f.attrs[STITCH_ATTR]) for f in stitched_functions(found)]
    assert any(b.consumer == "softmax" and "compute" in b.reason for b in boundaries)
    assert (
        len(stitched_functions(StitchOps(target="llvm", exclude={name})(mod)))
        == len(stitched_functions(found)) - 1
    )


def test_deep_models_need_no_stack() -> None:
    x = tensor("x", 8, 8)
    body = x
    for _ in range(1500):
        body = relay.nn.dense(relay.transpose(body), tensor_constant())
    mod = StitchOps(target="llvm")(module(body, x))
    assert len(stitched_functions(mod)) == 1500


def tensor_constant() -> Any:
    import numpy as np

    return relay.const(np.eye(8, dtype=F32))


def test_the_configuration_is_checked() -> None:
    with pytest.raises(TypeError, match="StitchConfig"):
        StitchOps(config="fast")  # type: ignore[arg-type]
