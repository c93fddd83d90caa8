# SPDX-License-Identifier: Apache-2.0
"""Dataflow blocks as nodes: kinds with reasons, values, results of calls with several."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, legalize, symbol
from tvm_stitch.graph.reader import Unreadable
from tvm_stitch.relax.dataflow import BlockView, GraphReader, call_args, is_call_tir, view_block
from tvm_stitch.scope.node import NodeKind

F32 = "float32"
X = ((4, 8), F32)


def viewed(body: Any, *specs: Any) -> tuple[BlockView, tvm.IRModule]:
    mod = legalize(build(body, *specs))
    (block,) = mod["main"].body.blocks
    return view_block(block, GraphReader(mod)), mod


def test_kinds_and_reasons() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return [R.argmax(emit(R.matmul(emit(R.exp(x)), w)), 1)]

    view, _ = viewed(body, X, ((8, 8), F32))
    kinds = [(n.kind, n.reason) for n in view.nodes[:3]]
    assert kinds[0] == (NodeKind.MEMORY, "") and kinds[1] == (NodeKind.COMPUTE, "compute-intensive")
    assert kinds[2][0] is NodeKind.OPAQUE and "block" in kinds[2][1]


def test_values_connect_nodes() -> None:
    view, mod = viewed(lambda emit, x: [R.add(emit(R.exp(x)), x)], X)
    exp, add = view.nodes[:2]
    assert exp.inputs == [mod["main"].params[0]] and add.inputs == [exp.outputs[0], mod["main"].params[0]]


def test_results_of_a_split_are_values() -> None:
    def body(emit: Any, x: Any) -> Any:
        parts = emit(R.split(x, 2, 1))
        return [R.exp(emit(relax.TupleGetItem(parts, 1)))]

    view, _ = viewed(body, X)
    split, exp = view.nodes[:2]
    assert split.kind is NodeKind.MEMORY and len(split.outputs) == 2
    assert exp.inputs == [split.outputs[1]] and len(split.graph.outputs) == 2


def test_what_leaves_the_block_escapes() -> None:
    def body(emit: Any, x: Any) -> Any:
        y = emit(R.exp(x))
        return [R.negative(y), R.abs(y)]

    view, _ = viewed(body, X)
    assert [bool(n.escapes) for n in view.nodes[:3]] == [False, True, True]


def test_a_function_is_read_once_and_specialised_to_each_call() -> None:
    n, m = symbol("n"), symbol("m")

    def body(emit: Any, x: Any, y: Any) -> Any:
        return [R.exp(x), R.exp(y)]

    view, _ = viewed(body, ((n, 8), F32), ((m, 8), F32))
    first, second = (node.graph for node in view.nodes[:2])
    assert [str(g.inputs[0].shape[0]) for g in (first, second)] == ["n", "m"]


def test_unreadable_functions_say_why_each_time() -> None:
    mod = legalize(build(lambda emit, x: [R.argmax(x, 1)], X))
    (gvar,) = [g for g in mod.get_global_vars() if g.name_hint != "main"]
    reader = GraphReader(mod)
    args = call_args(mod["main"].body.blocks[0].bindings[0].value)
    for _ in range(2):
        with pytest.raises(Unreadable, match="not one store"):
            reader.graph(gvar, args)


def test_calls_of_tensor_functions() -> None:
    mod = legalize(build(lambda emit, x: [R.add(x, x)], X))
    value = mod["main"].body.blocks[0].bindings[0].value
    assert is_call_tir(value) and len(call_args(value)) == 2
    assert not is_call_tir(mod["main"].params[0])
