# SPDX-License-Identifier: Apache-2.0
"""Dataflow blocks as nodes: kinds with reasons, values, results of calls with several."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as R_
from tvm.script import tirx as T

import tvm_stitch
from stitch_testing.random.graphs import LEVELS, random_graph
from tests.graph.helpers import build, legalize, symbol
from tvm_stitch.graph.reader import Unreadable
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.stitch.dataflow import BlockView, GraphReader, call_args, is_call_tir, view_block
from tvm_stitch.relax.stitch.stitch_ops import STITCH_ATTR, StitchOps
from tvm_stitch.scope.node import NodeKind
from tvm_stitch.scope.quotient import Quotient
from tvm_stitch.scope.weigh import kernels_of

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


def test_kernels_with_a_computed_size_come_after_it() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([3], "int64"))
    n = tirx.Var("n", "int64")
    with builder.function("main", [x]):
        with builder.dataflow():
            size = builder.emit(R.add(builder.emit(R.max(x, 0, keepdims=True)), relax.const(1, "int64")))
            builder.match_cast(builder.emit(R.tensor_to_shape(size)), relax.ShapeType([n]))
            length = builder.emit(R.shape_to_tensor(relax.ShapeExpr([n])))
            wrapped = builder.emit(R.where(R.less(x, relax.const(0, "int64")), R.add(x, length), x))
            result = builder.emit_output(relax.Tuple([wrapped, size]))
        builder.emit_func_output(result)
    mod = tvm_stitch.compile(builder.get(), "llvm", config=tvm_stitch.StitchConfig(strict=True))
    given = tvm.runtime.tensor(np.array([2, -1, 4], "int64"))
    wrapped, size = tvm.relax.VirtualMachine(mod, tvm.cpu())["main"](given)
    assert wrapped.numpy().tolist() == [2, 4, 4] and size.numpy().tolist() == [5]


def test_results_of_a_split_are_values() -> None:
    def body(emit: Any, x: Any) -> Any:
        parts = emit(R.split(x, 2, 1))
        return [R.exp(emit(relax.TupleGetItem(parts, 1)))]

    view, _ = viewed(body, X)
    split, exp = view.nodes[:2]
    assert split.kind is NodeKind.MEMORY and len(split.outputs) == 2
    assert exp.inputs == [split.outputs[1]] and len(split.graph.outputs) == 2


@pytest.mark.parametrize("used", ["once", "whole", "under two names"])
def test_a_tuple_that_is_also_used_otherwise_is_not_split(used: str) -> None:
    mod = legalize(build(lambda emit, x: [emit(R.split(x, 2, 1))], X))
    call = mod["main"].body.blocks[0].bindings[0].value
    builder = relax.BlockBuilder(mod)
    x = relax.Var("x", relax.TensorType([4, 8], F32))
    with builder.function("user", [x]):
        with builder.dataflow():
            parts = builder.emit(
                relax.Call(call.op, [call.args[0], relax.Tuple([x])], call.attrs, call.ty_args)
            )
            if used == "whole":
                builder.emit(relax.Tuple([parts, x]))
            if used == "under two names":
                builder.emit(relax.TupleGetItem(parts, 1))
            out = builder.emit_output(relax.TupleGetItem(parts, 1))
        builder.emit_func_output(out)
    (block,) = builder.get()["user"].body.blocks
    split = view_block(block, GraphReader(mod)).nodes[0]
    assert split.kind is (NodeKind.MEMORY if used == "once" else NodeKind.OPAQUE)
    assert split.reason == ("" if used == "once" else "its results are used as one tuple")


def test_functions_with_narrow_shapes_are_left_alone() -> None:
    @T.prim_func(private=True, s_tir=True)
    def narrow(a: T.Buffer((8,), F32), b: T.Buffer((8,), F32)) -> None:
        for i in T.serial(8):
            with T.sblock("b"):
                v = T.axis.spatial(8, i)
                b[v] = a[v] + T.float32(1)

    assert "is not int64, which FuseTIR does not merge" in str(GraphReader._read(narrow, "narrow"))


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


def test_a_symbol_that_no_argument_gives_is_not_shared_by_calls() -> None:
    """Both calls would have the function's own symbol for different numbers."""

    @I.ir_module
    class Module:
        @T.prim_func(private=True, s_tir=True)
        def double(x: T.handle, y: T.handle):
            k = T.int64()
            X = T.match_buffer(x, (k + 1,), "float32")
            Y = T.match_buffer(y, (k + 1,), "float32")
            for i in range(k + 1):
                with T.sblock("double"):
                    v = T.axis.spatial(k + 1, i)
                    Y[v] = X[v] * 2.0

        @R_.function
        def main(a: R_.Tensor(("n",), "float32"), b: R_.Tensor(("m",), "float32")):
            n, m = T.int64(), T.int64()
            with R_.dataflow():
                c = R_.call_tir(Module.double, (a,), out_ty=R_.Tensor((n,), "float32"))
                d = R_.call_tir(Module.double, (b,), out_ty=R_.Tensor((m,), "float32"))
                R_.output(c, d)
            return c, d

    (block,) = Module["main"].body.blocks
    view = view_block(block, GraphReader(Module))
    assert [n.reason for n in view.nodes[:2]] == ["no argument or result says what k is"] * 2


def test_arguments_that_disagree_are_left_alone() -> None:
    """TVM's kernel checks when it is called that both are equal."""
    n, m = symbol("n"), symbol("m")
    mod = legalize(build(lambda emit, x, y: [R.add(x, y)], ((n,), F32), ((n,), F32)))
    (gvar,) = [g for g in mod.get_global_vars() if g.name_hint != "main"]
    args = [relax.Var(str(i), relax.TensorType([s], F32)) for i, s in enumerate((n, m))]
    with pytest.raises(Unreadable, match="is n and m"):
        GraphReader(mod).graph(gvar, args)


def test_shapes_that_relax_does_not_copy_are_left_to_tvm() -> None:
    """Relax fails to copy a function with a call in a type. Its neighbours are stitched all the same."""
    n = symbol("n")

    def body(emit: Any, _: Any, x: Any) -> Any:
        y = emit(R.tanh(emit(R.exp(x))))
        return [R.abs(emit(R.strided_slice(y, [0], [1], [n // 16])))]

    view, mod = viewed(body, ((n,), F32), ((n // 16, 6), F32))
    assert [node.kind.value for node in view.nodes[:4]] == ["memory-intensive"] * 2 + ["opaque"] * 2
    assert "do not copy" in view.nodes[2].reason
    with tvm.target.Target("llvm"):
        assert [f for f in StitchOps()(mod).functions.values() if f.attrs and STITCH_ATTR in f.attrs]
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm")), tvm.cpu())
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(F32)
    got = vm["main"](*map(tvm.runtime.tensor, (np.zeros(50, F32), x))).numpy()
    np.testing.assert_allclose(got, np.abs(np.tanh(np.exp(x)))[1:], rtol=1e-5)


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


def groups_of_tvm(mod: tvm.IRModule) -> Counter[tuple[str, ...]]:
    """Return the functions that each call reaches after TVM's fusion, by name."""
    fused = relax.transform.FuseOps()(mod)

    def reached(value: Any) -> list[str]:
        if is_call_tir(value):
            return [value.args[0].name_hint]
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            return [
                n
                for b in fused[value.op].body.blocks
                for binding in b.bindings
                for n in reached(binding.value)
            ]
        return []

    return Counter(
        tuple(names)
        for block in fused["main"].body.blocks
        for binding in block.bindings
        if (names := sorted(reached(binding.value)))
    )


def groups_of_nodes(mod: tvm.IRModule) -> Counter[tuple[str, ...]]:
    """Return what ``tvm_stitch.scope.fusion`` says of them."""
    found: Counter[tuple[str, ...]] = Counter()
    for block in mod["main"].body.blocks:
        nodes = view_block(block, GraphReader(mod)).nodes
        for group in kernels_of(nodes, Quotient(nodes).users, [[i] for i in range(len(nodes))], {}):
            names = sorted(nodes[i].name for i in group.nodes if nodes[i].graph or nodes[i].is_call)
            found[tuple(names)] += bool(names)
    return +found


PREPARED = [
    relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FoldConstant(),
    relax.transform.ConvertToDataflow(min_size=1), relax.transform.CanonicalizeBindings(),
]  # fmt: skip


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_tvms_fusion_is_known(start: int) -> None:
    for seed in range(start, start + 20):
        mod = tvm.transform.Sequential(PREPARED)(random_graph(seed, 4_000, LEVELS[seed % 3]).mod)
        assert groups_of_nodes(mod) == groups_of_tvm(mod), seed


def test_tvms_fusion_is_known_around_matmuls() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any, r: Any) -> list[Any]:
        y = emit(R.add(emit(R.matmul(emit(R.exp(x)), w)), b))
        z = emit(R.add(emit(R.multiply(y, emit(R.sigmoid(y)))), emit(R.tanh(r))))
        parts = emit(R.split(emit(R.reshape(z, (8, 4))), 2, 1))
        p, q = emit(relax.TupleGetItem(parts, 0)), emit(relax.TupleGetItem(parts, 1))
        m = emit(R.matmul(p, emit(R.permute_dims(emit(R.negative(q))))))
        return [R.argmax(emit(R.nn.relu(m)), 1), R.concat([p, emit(R.abs(q))], 0), R.nn.softmax(m)]

    module = build(body, X, ((8, 8), F32), ((8,), F32), X)
    mod = tvm.transform.Sequential(PREPARED)(module)
    assert groups_of_nodes(mod) == groups_of_tvm(mod)
