# SPDX-License-Identifier: Apache-2.0
"""Reading PrimFuncs: axes, reductions, guards, casts, gathers, symbolic shapes, and what is declined with a reason."""

from __future__ import annotations

import pytest
from tvm.relax import op as R
from tvm.script import tirx as T

from stitch_testing.random.graphs import random_graph
from stitch_testing.validate import validate
from tests.graph.helpers import build, graph, graphs, legalize, operator, prim_funcs, single, symbol
from tvm_stitch import compat
from tvm_stitch.graph.ir import Dependency, OpClass, Span
from tvm_stitch.graph.reader import Unreadable, read
from tvm_stitch.testing.workloads.case import Case
from tvm_stitch.testing.workloads.cases import cases

F32 = "float32"


def test_element_wise() -> None:
    op_graph = single(lambda emit, x, y: R.add(x, y), ((3, 5), F32), ((3, 5), F32))
    (op,) = op_graph.operators
    assert [a.extent for a in op.spatial] == [3, 5] and op.reduce == () and op.combiner is None
    assert [t.shape for t in op_graph.inputs] == [(3, 5), (3, 5)] and op.output.shape == (3, 5)
    assert [(a.span, op.dependency(a)) for a in op.accesses] == [(Span.ALL, Dependency.ONE_TO_ONE)] * 2
    assert (
        op_graph.outputs == [op.output] and op.output.producer is op and op_graph.inputs[0].consumers == [op]
    )


@pytest.mark.parametrize(("name", "identity"), [("sum", 0.0), ("prod", 1.0), ("max", None), ("min", None)])
def test_reductions_keep_their_init(name: str, identity: float | None) -> None:
    op_graph = single(lambda emit, x: getattr(R, name)(x, -1), ((4, 6), F32))
    op = operator(op_graph, "x")
    assert (op.combiner, op.op_class) == (name, OpClass.REDUCE)
    assert [a.extent for a in op.spatial] == [4] and [a.extent for a in op.reduce] == [6]
    value = op.identity.value
    assert value == identity if identity is not None else abs(value) > 3e38
    assert (value < 0) == (name == "max") or name in ("sum", "prod")
    assert op.dependency(op.accesses[0]) is Dependency.MANY_TO_ONE


@pytest.mark.parametrize(
    ("axis", "span"), [([1, 2], Span.ALL), ([2], Span.ALL), ([0], Span.OTHER), ([1], Span.OTHER)]
)
@pytest.mark.parametrize("keepdims", [True, False])
def test_reduced_axes(axis: list[int], span: Span, keepdims: bool) -> None:
    shape = (2, 3, 4)
    op = operator(single(lambda emit, x: R.sum(x, axis, keepdims), (shape, F32)), "x")
    assert sorted(a.extent for a in op.reduce) == sorted(shape[i] for i in axis)
    ones = [1 if i in axis else e for i, e in enumerate(shape)]
    kept = ones if keepdims else [e for i, e in enumerate(shape) if i not in axis]
    assert list(op.output.shape) == kept and [a.extent for a in op.spatial] == kept
    assert op.accesses[0].span is span


def test_boolean_reductions() -> None:
    @T.prim_func(private=True, s_tir=True)
    def every(a: T.Buffer((T.int64(4), T.int64(8)), "bool"), b: T.Buffer((T.int64(4),), "bool")) -> None:
        for i, k in T.grid(T.int64(4), T.int64(8)):
            with T.sblock("every"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    b[vi] = T.bool(True)
                b[vi] = b[vi] and a[vi, vk]

    (op,) = read(every).operators
    assert op.combiner == "all" and op.identity.value == 1


def test_a_reduction_without_spatial_axes() -> None:
    op_graph = single(lambda emit, x: R.sum(x), ((4, 6), F32))
    op = operator(op_graph, "x")
    assert op.spatial == () and op.output.shape == () and op.output.size == 1
    validate(op_graph)


def test_scalars() -> None:
    op_graph = single(lambda emit, x, y: R.add(x, y), ((), F32), ((3,), F32))
    op = op_graph.operators[0]
    assert [a.span for a in op.accesses] == [Span.NOTHING, Span.ALL]
    assert [op.dependency(a) for a in op.accesses] == [Dependency.ONE_TO_MANY, Dependency.ONE_TO_ONE]
    scalar = single(lambda emit, x: R.exp(x), ((), F32))
    op = scalar.operators[0]
    assert [a.extent for a in op.spatial] in (
        [],
        [1],
    ) and op.output.shape == ()  # TVM may give it a unit axis
    assert op.dependency(op.accesses[0]) is Dependency.ONE_TO_ONE
    validate(scalar)


def test_guarded_reads() -> None:
    op_graph = single(lambda emit, x: R.nn.pad(x, [0, 0, 1, 2]), ((3, 5), F32))
    (op,) = op_graph.operators
    assert op.op_class is OpClass.MOVE and [a.guarded for a in op.accesses] == [True]
    concat = single(lambda emit, x, y: R.concat([x, y], 1), ((3, 5), F32), ((3, 2), F32))
    assert [a.guarded for a in concat.operators[0].accesses] == [True, True]


def test_casts() -> None:
    op_graph = single(lambda emit, x: R.astype(x, "float16"), ((3, 5), F32))
    (op,) = op_graph.operators
    assert op.output.dtype == "float16" and op.op_class is OpClass.LIGHT and op.accesses[0].span is Span.ALL


def test_gathers_read_their_indices() -> None:
    op_graph = single(lambda emit, x, i: R.take(x, i, 0), ((9, 5), F32), ((4,), "int32"))
    (op,) = op_graph.operators
    by_name = {a.tensor.name: a for a in op.accesses}
    assert len(op.accesses) == 2 and len(by_name) == 2
    assert by_name["x0"].span is Span.OTHER and op.dependency(by_name["x0"]) is Dependency.GENERAL
    validate(op_graph)


def test_symbolic_extents_are_expressions() -> None:
    n = symbol()
    op_graph = single(lambda emit, x: R.sum(x, -1, True), ((n, 8), F32))
    op = operator(op_graph, "x")
    assert (
        not isinstance(op.spatial[0].extent, int) and op.spatial[1].extent == 1 and op.reduce[0].extent == 8
    )
    assert op.accesses[0].span is Span.ALL
    validate(op_graph)


def test_symbolic_sizes_are_the_same_variable_after_merging() -> None:
    n = symbol()
    op_graph = graph(
        build(lambda emit, x: R.exp(emit(R.subtract(x, emit(R.max(x, -1, True))))), ((n, 8), F32))
    )
    sizes = [t.shape[0] for t in op_graph.tensors()]
    assert all(str(s) == str(sizes[0]) for s in sizes)
    validate(op_graph)


def test_a_combination_with_the_accumulator_on_the_right() -> None:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((T.int64(8), T.int64(4)), F32), b: T.Buffer((T.int64(8),), F32)) -> None:
        for i, k in T.grid(T.int64(8), T.int64(4)):
            with T.sblock("b"):
                v, r = T.axis.remap("SR", [i, k])
                with T.init():
                    b[v] = T.float32(0)
                b[v] = T.exp(a[v, r]) + b[v]

    (op,) = read(func).operators
    assert op.combiner == "sum" and compat.call_name(op.value) == "exp"


@pytest.mark.parametrize("case", cases("test"), ids=lambda case: case.name)
def test_every_function_of_the_cases_is_valid(case: Case) -> None:
    functions = prim_funcs(legalize(case.build()))
    assert functions
    for name, func in functions.items():
        validate(read(func, name))
    for op_graph in graphs(case.build()):
        validate(op_graph)


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_random_graphs_are_valid(first: int) -> None:
    """Every legalized function, and what StitchOps and FuseTIR make of them."""
    for seed in range(first, first + 10):
        made = random_graph(seed, max_elements=2000)
        for name, func in prim_funcs(legalize(made.mod)).items():
            op_graph = read(func, name)
            validate(op_graph)
            assert len(op_graph.inputs) + len(op_graph.outputs) == len(func.params)
        for op_graph in graphs(made.mod):
            validate(op_graph)


def test_printing_shows_operators_and_edges() -> None:
    op_graph = graph(
        build(lambda emit, x: R.exp(emit(R.subtract(x, emit(R.max(x, -1, True))))), ((4, 8), F32))
    )
    text = str(op_graph)
    assert "x0_red<4,1> over 8  [reduce] <- x0:many-to-one" in text
    assert "T_subtract<4,8>  [light element-wise] <- x0:one-to-one, x0_red_intermediate:one-to-many" in text
    assert text.splitlines()[-1].startswith("  return ")


def test_one_element_is_one_to_one() -> None:
    """A dimension or two of size one spread nothing. A scalar read by many points does."""
    unit = single(lambda emit, x: R.exp(x), ((1, 1), F32)).operators[0]
    assert unit.dependency(unit.accesses[0]) is Dependency.ONE_TO_ONE
    total = operator(single(lambda emit, x: R.sum(x), ((1, 1), F32)), "x")
    assert total.dependency(total.accesses[0]) is Dependency.MANY_TO_ONE


def test_axes_of_32_bits_are_read_or_declined_with_a_reason() -> None:
    @T.prim_func(private=True, s_tir=True)
    def func(a: T.Buffer((8,), F32), b: T.Buffer((8,), F32)) -> None:
        for i in T.serial(8):
            with T.sblock("b"):
                v = T.axis.spatial(8, i)
                b[v] = a[v]

    try:
        validate(read(func))
    except Unreadable as err:
        assert "int32" in str(err)
