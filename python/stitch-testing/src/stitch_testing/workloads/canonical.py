# SPDX-License-Identifier: Apache-2.0
"""A description of graphs and plans that does not depend on their front end.

The description omits names, the order of outputs and of independent operators, the dtypes of indices and axes of
extent one. Operators are ``v0``, ``v1``, ... in the order of a depth-first walk from the outputs. Inputs are ``x0``,
``x1``, ... in the order of the same walk. TVMs write two scalar expressions in forms that differ by rounding at most.
The description has one form of each: the product with the reciprocal for a division by a number, and ``rsqrt(x)`` for
``1 / sqrt(x)``.

The rest must be equal for equivalent programs: shapes, dtypes, expressions, classes, spans and dependencies. The
plans must be equal in everything that ``explain`` shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np

from tvm_stitch import compat
from tvm_stitch.compat import Analyzer, Expr, Var, has_load, tir
from tvm_stitch.graph.extent import Extent, as_expr
from tvm_stitch.graph.ir import Operator, StitchGraph, Tensor
from tvm_stitch.plan.kernel import KernelPlan
from tvm_stitch.records.describe import describe
from tvm_stitch.report.kernel import Kernel
from tvm_stitch.report.report import Report

_SYMBOLS = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Mod": "%", "FloorDiv": "//", "FloorMod": "%%", "EQ": "==",
    "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "And": "and", "Or": "or", "BitwiseAnd": "&",
    "BitwiseOr": "|", "BitwiseXor": "^", "LShift": "<<", "RShift": ">>",
}  # fmt: skip

_IN_TIME = frozenset({"passes", "phases", "holds", "shape"})
"""Lists of a plan whose order has a meaning."""


def rename(graph: StitchGraph) -> StitchGraph:
    """Give the operators and tensors of a graph their canonical names, in place, and return the graph.

    The order of ``graph.operators`` does not change. So plans of the graph have canonical names, but are otherwise
    those of the original graph.
    """
    operators, inputs = _numbered(graph)
    for i, op in enumerate(operators):
        op.name = op.output.name = f"v{i}"
    for i, tensor in enumerate(inputs):
        tensor.name = f"x{i}"
    return graph


def _numbered(graph: StitchGraph) -> tuple[list[Operator], list[Tensor]]:
    """Return operators in the order of a depth-first walk from the outputs, operands first, and inputs likewise."""
    operators: dict[Operator, None] = {}
    inputs: dict[Tensor, None] = {}

    def walk(tensor: Tensor) -> None:
        op = tensor.producer
        if op is None:
            inputs[tensor] = None
        elif op not in operators:
            for operand in op.inputs:
                walk(operand)
            operators[op] = None

    for tensor in [*_outputs(graph), *(op.output for op in graph.operators), *graph.inputs]:
        walk(tensor)
    return list(operators), list(inputs)


def _outputs(graph: StitchGraph) -> list[Tensor]:
    """Return the outputs in an order that depends on their computations, not on the caller's results."""
    if len(graph.outputs) < 2:
        return graph.outputs
    return sorted(graph.outputs, key=lambda t: graph_lines(StitchGraph("", [], [], [t])))


def graph_lines(graph: StitchGraph) -> list[str]:
    """Return the canonical description of a graph, a line for each operator. The graph is not changed."""
    operators, inputs = _numbered(graph)
    names = {t: f"x{i}" for i, t in enumerate(inputs)} | {
        op.output: f"v{i}" for i, op in enumerate(operators)
    }
    lines = [f"{names[t]}: {t.dtype}<{_extents(t.shape)}>" for t in inputs]
    lines += [_Writer(op, names).line() for op in operators]
    return [*lines, f"return {', '.join(names[t] for t in _outputs(graph))}"]


def plan_data(plan: KernelPlan) -> dict[str, Any]:
    """Describe a plan of a graph that :func:`rename` renamed: JSON-able, with lists in a fixed order."""
    kernel = vars(describe("kernel", plan))
    operators = zip(plan.graph.operators, kernel["operators"], strict=True)
    kernel["operators"] = [
        {**data, "operator": f"{op.name}<{_extents(op.output.shape)}>"} for op, data in operators
    ]
    reduces = {op.name for op in plan.graph.reduces}
    for data in kernel["groups"]:
        _choose_dominant(data, reduces)
    ordered: dict[str, Any] = json.loads(json.dumps(_ordered(kernel)))
    return ordered


def _choose_dominant(group: dict[str, Any], reduces: set[str]) -> None:
    """Choose the first of several equally good dominants, in the order of operators, to name a group."""
    names = sorted([group["dominant"], *group["sub_dominants"]], key=_by_number)
    group["dominant"] = next((name for name in names if name in reduces), names[-1])
    group["sub_dominants"] = [name for name in names if name != group["dominant"]]


def plan_lines(plan: KernelPlan) -> list[str]:
    """Return :func:`plan_data` as lines, as ``explain`` writes it."""
    return Report("", [Kernel(**plan_data(plan))]).verbose().splitlines()[2:]


def _ordered(data: Any, key: str = "") -> Any:
    if isinstance(data, dict):
        return {k: _ordered(v, k) for k, v in data.items()}
    if not isinstance(data, list):
        return data
    items = [_ordered(v) for v in data]
    return items if key in _IN_TIME else sorted(items, key=_by_number)


def _by_number(data: Any) -> list[Any]:
    """Sort names by their numbers, v2 before v10, and entries by their first name."""
    parts = re.split(r"(\d+)", data if isinstance(data, str) else json.dumps(data))
    return [int(part) if i % 2 else part for i, part in enumerate(parts)]


class _Writer:
    """Writes one operator."""

    def __init__(self, op: Operator, names: dict[Tensor, str]):
        self.op, self.names = op, names
        self.analyzer = Analyzer()
        self.axis: dict[Var, Expr] = {}
        for letter, axes in (("i", op.spatial), ("k", op.reduce)):
            live = 0
            for a in axes:
                dtype = compat.dtype_of(a.var)
                if isinstance(a.extent, int) and a.extent == 1:
                    self.axis[a.var] = compat.const(0, dtype)
                    continue
                self.axis[a.var] = var = tir.Var(f"{letter}{live}", dtype)
                compat.bind_range(self.analyzer, var, as_expr(a.extent))
                live += 1

    def line(self) -> str:
        op = self.op
        over = f"{op.combiner} over <{_extents([a.extent for a in op.reduce])}> of " if op.is_reduce else ""
        value = self.write(compat.substitute(op.value, self.axis))
        if op.is_reduce and op.combiner not in (
            "max",
            "min",
        ):  # their start is any value that is low, or high
            over += f"{self.write(op.identity)} and "
        edges = ", ".join(
            f"{self.names[a.tensor]} {op.dependency(a).value}, {a.span.value} axes{' guarded' * a.guarded}"
            for a in op.accesses
        )
        said = f"{self.names[op.output]}: {op.output.dtype}<{_extents(op.output.shape)}> = {over}{value}"
        return f"{said}  [{op.op_class.value}{'; contraction' * op.contraction}] <- {edges or 'nothing'}"

    def write(self, e: Expr) -> str:
        name = compat.kind(e)
        if compat.is_load(e):
            return self._load(e)
        if name in ("Var", "SizeVar", "StringImm"):
            return str(e)
        dtype = compat.dtype_of(e)
        if name == "IntImm":
            return f"{dtype}({int(e.value)})"
        if name == "FloatImm":
            return self._float(float(e.value), dtype)
        if name == "Div" and "float" in dtype:
            return self._quotient(e)
        if name in _SYMBOLS:
            return f"({self.write(e.a)} {_SYMBOLS[name]} {self.write(e.b)})"
        if name == "Cast":
            return f"{dtype}({self.write(e.value)})"
        called = compat.call_name(e) if name == "Call" else name.lower()
        return f"{called}({', '.join(self.write(o) for o in compat.operands(e))})"

    def _quotient(self, e: Expr) -> str:
        if compat.kind(e.b) == "FloatImm" and float(e.b.value) != 0:
            with np.errstate(over="ignore"):
                one = np.dtype(compat.dtype_of(e)).type(1)
                factor = float(one / one.dtype.type(float(e.b.value)))
            return f"({self.write(e.a)} * {self._float(factor, compat.dtype_of(e))})"
        root = compat.kind(e.b) == "Call" and compat.call_name(e.b) == "sqrt"
        if root and compat.kind(e.a) == "FloatImm" and float(e.a.value) == 1:
            return f"rsqrt({self.write(e.b.args[0])})"
        return f"({self.write(e.a)} / {self.write(e.b)})"

    @staticmethod
    def _float(value: float, dtype: str) -> str:
        return f"{dtype}({float(np.dtype(dtype).type(value)):.9g})"

    def _load(self, e: Expr) -> str:
        tensor = self.op.operand[compat.load_buffer(e)]
        live = [i for i, n in zip(e.indices, tensor.shape) if not (isinstance(n, int) and n == 1)]
        return f"{self.names[tensor]}[{', '.join(map(self._index, live))}]"

    def _index(self, e: Expr) -> str:
        """Write an index: without dtypes, and in the analyzer's simple form unless it is read."""
        text = self.write(e if has_load(e) else self.analyzer.simplify(e))
        return re.sub(r"\bint(?:32|64)\((-?\d+)\)", r"\1", text)


def _extents(extents: Sequence[Extent]) -> str:
    return ",".join(map(str, extents))
