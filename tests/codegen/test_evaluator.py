# SPDX-License-Identifier: Apache-2.0
"""Expressions at points: half types widened, guards respected, each value bound once."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, graph
from tvm_stitch import compat
from tvm_stitch.codegen.combine import accumulator_dtype, combine, identity
from tvm_stitch.codegen.evaluator import Evaluator, compute_dtype, convert, input_indices, widen
from tvm_stitch.compat import tir
from tvm_stitch.graph.ir import Operator, StitchGraph
from tvm_stitch.plan.iteration.alignment import align
from tvm_stitch.plan.iteration.domain import ONE, ROW, At, Point
from tvm_stitch.repairs.tir.arithmetic import DEVICE, HOST

F32 = "float32"


class Recorder:
    """A reader that keeps nothing and records what is bound."""

    def __init__(self) -> None:
        self.bound: list[str] = []

    def kept(self, key: Any) -> None:
        return None

    def input(self, access: Any, point: Any) -> None:
        return None

    def guarded_input(self, access: Any, point: Any) -> None:
        return None

    def condition(self, key: Any, condition: Any) -> None:
        return None

    def sum_of_window(self, key: Any, e: Any) -> None:
        return None

    def bind(self, value: Any, name: str) -> Any:
        self.bound.append(name.removesuffix("_intermediate"))
        return tir.Var(f"bound_{name}_{len(self.bound)}", compat.dtype_of(value))


def evaluator(op_graph: StitchGraph) -> tuple[Evaluator, Recorder, Any, Any]:
    reader = Recorder()
    row, column = tir.Var("r", "int64"), tir.Var("c", "int64")
    made = Evaluator(align(op_graph, CHOICES), row, reader)
    made.at_column(column)
    return made, reader, row, column


def short(op: Operator) -> str:
    """Return the name of an operator's result, without what FuseTIR adds."""
    return op.output.name.removesuffix("_intermediate")


def loads_in(expr: Any) -> list[Any]:
    found = [expr] if compat.is_load(expr) else []
    return found + [e for o in compat.operands(expr) for e in loads_in(o)]


def test_half_types_compute_in_float32() -> None:
    assert [compute_dtype(d) for d in ("float16", "bfloat16", F32, "float64", "int8", "bool")] == [
        F32, F32, F32, "float64", "int8", "bool",
    ]  # fmt: skip
    x = tir.Var("x", F32)
    assert convert(x, F32) is x and compat.dtype_of(convert(x, "float16")) == "float16"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_was_rounded_is_not_rounded_again(dtype: str) -> None:
    x = tir.Var("x", F32)
    rounded = tir.Cast(dtype, x)
    assert convert(tir.Cast(F32, rounded), dtype).same_as(rounded)
    other = "float16" if dtype == "bfloat16" else "bfloat16"
    assert compat.dtype_of(convert(tir.Cast(F32, rounded), other)) == other
    assert compat.kind(convert(tir.Cast(F32, rounded), "int32")) == "Cast"
    truncated = tir.Cast("int32", rounded)
    assert convert(truncated, dtype).value.same_as(truncated)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nothing_is_computed_in_half_types(dtype: str) -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        z = emit(R.exp(emit(R.maximum(emit(R.multiply(x, y)), relax.const(0.5, dtype)))))
        return [R.where(emit(R.greater(z, x)), z, y)]

    op_graph = graph(build(body, ((4, 8), dtype), ((4, 8), dtype)))
    made, _, _, _ = evaluator(op_graph)
    (root,) = made.al.roots

    def visit(e: Any) -> None:
        if compat.kind(e) == "Cast":
            assert compat.dtype_of(e) not in ("float16", "bfloat16")
            if compat.is_load(e.value):
                return
        if not compat.is_load(e):
            assert compat.dtype_of(e) not in ("float16", "bfloat16"), e
            for o in compat.operands(e):
                visit(o)

    for key in made.al.reads:
        visit(made._expression(key, False))
    assert root[0].output.dtype == dtype


def test_an_explicit_rounding_is_kept() -> None:
    x = tir.Var("x", F32)
    rounded = widen(tir.Cast("float16", x), lambda e: e, DEVICE)
    assert compat.dtype_of(rounded) == F32 and compat.dtype_of(rounded.value) == "float16"
    constant = widen(compat.const(0.1, "float16"), lambda e: e, DEVICE)
    assert compat.dtype_of(constant) == F32


def test_each_value_is_bound_once_a_column() -> None:
    def body(emit: Any, x: Any) -> Any:
        y = emit(R.exp(x))
        return [R.add(emit(R.multiply(y, y)), y)]

    op_graph = graph(build(body, ((4, 8), F32)))
    made, reader, _, column = evaluator(op_graph)
    (root,) = made.al.roots
    made.value(root)
    assert sorted(reader.bound) == sorted(short(op) for op in op_graph.operators)
    made.value(root)
    assert len(reader.bound) == 3
    made.at_column(column + 1)
    made.value(root)
    assert len(reader.bound) == 6


def test_row_values_are_bound_once_and_read_by_columns() -> None:
    def body(emit: Any, x: Any) -> Any:
        high = emit(R.exp(emit(R.max(x, -1, True))))
        return [R.subtract(x, high)]

    op_graph = graph(build(body, ((4, 8), F32)))
    made, reader, row, _ = evaluator(op_graph)
    reduce, heavy, output = op_graph.operators
    known = tir.Var("known", F32)
    made.set_row_value((reduce, ROW), known)
    made.bind_row((heavy, ROW))
    made.bind_row((heavy, ROW))
    assert reader.bound == [short(heavy)]
    value = made.value((output, made.al.domain.full(8)))
    assert reader.bound == [short(heavy), short(output)]
    assert compat.kind(value) == "Var"
    expression = made._expression((output, made.al.domain.full(8)), False)
    (load,) = loads_in(expression)
    assert [str(i) for i in load.indices] == ["r", "c"]


def test_what_a_guard_protects_is_evaluated_in_place() -> None:
    """Nothing of a padded value may be bound before its condition."""

    def body(emit: Any, x: Any) -> Any:
        return [R.nn.pad(emit(R.exp(x)), [0, 0, 1, 2])]

    op_graph = graph(build(body, ((4, 8), F32)))
    made, reader, _, _ = evaluator(op_graph)
    (root,) = made.al.roots
    made.value(root)
    assert reader.bound == [short(root[0])]


def test_a_missing_row_reads_nothing() -> None:
    op_graph = graph(build(lambda emit, x: R.exp(x), ((4, 8), F32)))
    made, _, row, _ = evaluator(op_graph)
    made.guard = row < 4
    (root,) = made.al.roots
    expression = made._expression(root, False)
    (inner,) = compat.operands(expression)
    assert compat.call_name(inner) == "if_then_else" and compat.is_load(inner.args[1])


@pytest.mark.parametrize(
    ("point", "expected"),
    [(ONE, ["0", "0"]), (ROW, ["row // 8", "row % 8"]), (Point(At.COLUMN, 32), ["col // 8", "col % 8"])],
    ids=str,
)
def test_input_indices(point: Point, expected: list[str]) -> None:
    op_graph = graph(build(lambda emit, x: R.exp(x), ((4, 8), F32)))
    indices = input_indices(align(op_graph, CHOICES), op_graph.inputs[0], point)
    shown = [re.sub(r"T\.int64\((\d+)\)", r"\1", str(i)) for i in indices]
    assert shown == expected


@pytest.mark.parametrize(
    ("name", "a", "b", "result"),
    [("sum", 2.0, 3.0, 5.0), ("prod", 2.0, 3.0, 6.0), ("max", 2.0, 3.0, 3.0), ("min", 2.0, 3.0, 2.0)],
)
def test_combine(name: str, a: float, b: float, result: float) -> None:
    combined = combine(name, compat.const(a, F32), compat.const(b, F32), HOST)
    assert float(compat.Analyzer().simplify(combined).value) == result


@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("b", [False, True])
def test_combine_booleans(a: bool, b: bool) -> None:
    def folded(name: str) -> bool:
        combined = combine(name, compat.const(a, "bool"), compat.const(b, "bool"))
        return bool(compat.Analyzer().simplify(combined).value)

    assert (folded("all"), folded("any")) == (a and b, a or b)


@pytest.mark.parametrize(
    ("name", "dtype", "start"),
    [
        ("max", "bfloat16", -math.inf),
        ("min", "bfloat16", math.inf),
        ("max", "float16", -math.inf),
        ("min", "float16", math.inf),
    ],
)
def test_extrema_start_from_infinity(name: str, dtype: str, start: float) -> None:
    """TVM writes the type's last number, for bfloat16 float32's, which it does not have."""
    op = graph(build(lambda emit, x: getattr(R, name)(x, -1), ((4, 8), dtype))).reduces[0]
    assert float(identity(op).value) == start


def test_the_identity_is_rounded_as_its_dtype_rounds() -> None:
    """A function of one's own may start from any number."""
    op = graph(build(lambda emit, x: R.max(x, -1), ((4, 8), "float16"))).reduces[0]
    op.identity = compat.const(0.1, "float16")
    assert float(identity(op).value) == float(np.float16(0.1))


def test_an_unknown_combiner_names_the_known() -> None:
    with pytest.raises(ValueError, match="one of sum, prod, max, min, all, any"):
        combine("median", compat.const(1.0, F32), compat.const(1.0, F32))


@pytest.mark.parametrize("dtype", [F32, "float16", "bfloat16", "int32", "int8"])
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
def test_the_identity_is_neutral(name: str, dtype: str) -> None:
    """Combined with the least and greatest values of the dtype nothing changes."""
    import ml_dtypes
    import numpy as np

    op = graph(build(lambda emit, x: getattr(R, name)(x, -1), ((4, 8), dtype))).reduces[0]
    assert accumulator_dtype(op) == (F32 if dtype in ("float16", "bfloat16") else dtype)
    start = float(identity(op).value)
    if "int" in dtype:
        info: Any = np.iinfo(dtype)
    else:
        info = ml_dtypes.finfo(dtype) if dtype == "bfloat16" else np.finfo(dtype)
    folds = {"sum": lambda a, b: a + b, "prod": lambda a, b: a * b, "max": max, "min": min}
    for value in (float(info.min), float(info.max), 0.0, 1.0):
        assert folds[name](start, value) == value
