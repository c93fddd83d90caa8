# SPDX-License-Identifier: Apache-2.0
"""Relay expressions as nodes: values behind tuples and bindings, kinds, reasons."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import tvm
from tvm import relay

from stitch_testing.random.growth import LEVELS
from stitch_testing.relay.random_graphs import random_graph
from tvm_stitch.graph.reader import Unreadable
from tvm_stitch.relay.dataflow import Region, _readable, view
from tvm_stitch.relay.lower import OpReader, short_name
from tvm_stitch.relay.traverse import children, post_order, rewrite
from tvm_stitch.scope.node import NodeKind
from tvm_stitch.scope.quotient import Quotient
from tvm_stitch.scope.weigh import kernels_of

LLVM = tvm.target.Target("llvm")


def region(body: Any, *params: Any) -> Region:
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function(list(params), body)))
    return view(mod["main"].body, OpReader(LLVM))


def tensor(name: str, *shape: int) -> Any:
    return relay.var(name, shape=shape)


def test_kinds_and_their_reasons() -> None:
    x, w = tensor("x", 4, 8), tensor("w", 8, 8)
    found = region(relay.cumsum(relay.nn.dense(relay.exp(x), w), axis=1), x, w)
    assert [(n.name, n.kind) for n in found.nodes] == [
        ("exp", NodeKind.MEMORY),
        ("dense", NodeKind.COMPUTE),
        ("cumsum", NodeKind.OPAQUE),
    ]
    assert "no tensor expression" in found.nodes[2].reason
    assert [n.escapes for n in found.nodes] == [set(), set(), set(found.nodes[2].outputs)]


def test_results_of_several_are_values_of_their_own() -> None:
    x = tensor("x", 4, 8)
    halves = relay.split(x, 2, axis=1)
    found = region(relay.concatenate([halves[1], halves[0]], axis=1), x)
    split, joined = found.nodes
    assert len(split.outputs) == 2 and list(joined.inputs) == [split.outputs[1], split.outputs[0]]


def test_an_argument_used_twice_is_one_input() -> None:
    x = tensor("x", 4, 8)
    (node,) = region(relay.multiply(x, x), x).nodes
    assert len(node.inputs) == 1 and node.graph is not None and len(node.graph.inputs) == 1


def test_scalar_constants_are_no_inputs_and_others_are() -> None:
    import numpy as np

    x = tensor("x", 4, 8)
    found = region(relay.add(relay.multiply(x, relay.const(2.0)), relay.const(np.ones(8, "float32"))), x)
    assert [len(n.inputs) for n in found.nodes] == [1, 2]


def test_variables_stand_for_what_they_are_bound_to() -> None:
    x, a, b = tensor("x", 4, 8), relay.Var("a"), relay.Var("b")
    body = relay.Let(
        a, relay.exp(x), relay.Let(b, relay.Tuple([a, x]), relay.add(relay.TupleGetItem(b, 0), a))
    )
    exp, add = region(body, x).nodes
    assert list(add.inputs) == list(exp.outputs)


def test_what_a_branch_refers_to_leaves_the_region() -> None:
    x, a, chosen = tensor("x", 4, 8), relay.Var("a"), relay.var("chosen", shape=(), dtype="bool")
    body = relay.Let(a, relay.exp(x), relay.If(chosen, relay.add(a, a), x))
    exp, branch = region(body, x, chosen).nodes
    assert exp.escapes == set(exp.outputs) and set(exp.outputs) <= set(branch.inputs)


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [("TOpIsStateful", "more than its arguments"), ("TNonComputational", "computes nothing")],
)
def test_operators_that_are_no_functions_are_left_alone(attribute: str, reason: str) -> None:
    operator = SimpleNamespace(name="some.op", get_attr=lambda name: name == attribute)
    with pytest.raises(Unreadable, match=reason):
        _readable(SimpleNamespace(op=operator))


def test_each_kind_of_call_is_read_once_and_close_attributes_are_not_the_same() -> None:
    x = tensor("x", 4, 8)
    body = relay.exp(relay.clip(relay.clip(relay.clip(x, 0.0, 1e-10), 0.0, 2e-10), 0.0, 1e-10))
    reader = OpReader(LLVM)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x], body)))
    view(mod["main"].body, reader)
    assert len(reader.cache) == 3


def test_walks_need_no_stack_and_visit_shared_parts_once() -> None:
    body = x = tensor("x", 2)
    for _ in range(5000):
        body = relay.add(body, body)
    order = list(post_order([body]))
    assert order[0] in (x, body.op) and order[-1].same_as(body) and len(order) == 5002

    def swap(expr: Any) -> Any:
        return relay.multiply(*expr.args) if isinstance(expr, relay.Call) else expr

    new = rewrite(body, swap)
    assert {c.op.name for c in post_order([new]) if isinstance(c, relay.Call)} == {"multiply"}
    assert children(new)[1].same_as(children(new)[2])


def test_scalars_of_bfloat16_are_inputs() -> None:
    """TVM has no constants of that dtype in tensor expressions."""
    x = relay.var("x", shape=(4, 8), dtype="bfloat16")
    (node,) = region(relay.multiply(x, relay.const(0.25, "bfloat16")), x).nodes
    assert node.kind is NodeKind.MEMORY and len(node.inputs) == 2


def fused_by_tvm(mod: tvm.IRModule) -> Counter[tuple[str, ...]]:
    """Return the operators of each function that TVM's fusion makes."""
    found: Counter[tuple[str, ...]] = Counter()

    def visit(expr: Any) -> None:
        if isinstance(expr, relay.Call) and isinstance(expr.op, relay.Function):
            calls = (e for e in post_order([expr.op.body]) if isinstance(e, relay.Call))
            found[tuple(sorted(short_name(call.op.name) for call in calls))] += 1

    relay.analysis.post_order_visit(relay.transform.FuseOps(fuse_opt_level=2)(mod)["main"].body, visit)
    return found


@pytest.mark.parametrize("start", [0, 10])
def test_tvms_fusion_is_known(start: int) -> None:
    for seed in range(start, start + 10):
        mod = relay.transform.InferType()(random_graph(seed, 4_000, LEVELS[seed % 3]).mod)
        nodes = view(mod["main"].body, OpReader(LLVM)).nodes
        groups = kernels_of(nodes, Quotient(nodes).users, [[i] for i in range(len(nodes))], {})
        known = Counter(tuple(sorted(nodes[i].name for i in group.nodes)) for group in groups)
        assert known == fused_by_tvm(mod), seed
