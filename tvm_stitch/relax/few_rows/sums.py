# SPDX-License-Identifier: Apache-2.0
"""Write a product of few rows as sums over its weights, each a reduction of one element of every row of weights.

The product ``y[m, n] = sum_k x[m, k] * w[n, k]`` of M rows becomes M reductions over ``k`` for each ``n``. With a
``width`` of 4 it becomes 4 * M reductions for each four neighbouring ``n``. All of them are taken in one pass over the
weights. So a kernel loads and dequantizes a weight once for all rows. It converts an element of ``x`` once for four
weights. A last operator picks the elements of the product out of the sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from ... import compat
from ...compat import Expr, PrimFunc, Var
from ...cost.choices import Choices
from ...device import DeviceModel
from ...graph.classify import without_casts
from ...graph.dtype import item_bytes
from ...graph.extent import is_static
from ...graph.ir import Axis, Operator, StitchGraph, Tensor


@dataclass(frozen=True, eq=False)
class FewRows:
    """A product of few rows.

    Attributes:
        operator: the contraction.
        weight: the tensor that is the weight.
        rows: the axes of the result's rows.
        column: the axis of the result's columns, a row of weights each.
    """

    operator: Operator
    weight: Tensor
    rows: tuple[Axis, ...]
    column: Axis

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return math.prod(int(a.extent) for a in self.rows)

    @property
    def depth(self) -> int:
        """The number of products that a sum adds up."""
        return math.prod(int(a.extent) for a in self.operator.reduce)

    @property
    def column_position(self) -> int:
        """The dimension of the result that holds its columns."""
        return self.operator.spatial.index(self.column)

    def is_along(self, order: Sequence[int]) -> bool:
        """Return whether neighbouring elements of the weight in memory are added up, if its axes lie in an order."""
        indices = next(a.indices for a in self.operator.accesses if a.tensor is self.weight)
        reduced = {a.var for a in self.operator.reduce}
        return bool(reduced & compat.free_vars(indices[order[-1]]))

    def order_along(self) -> tuple[int, ...]:
        """Return an order of the weight's axes in which neighbouring elements are added up."""
        axes = range(len(self.weight.shape))
        last = [i for i in axes if self.is_along([i])]
        return (*(i for i in axes if i not in last), *last)

    def width(self, device: DeviceModel) -> int:
        """Return how many neighbouring rows of weights are read together: fewer, the more sums there are."""
        choices = device.choices
        of_registers = int(device.vector_registers * choices.sums_share)
        width, most = choices.weight_rows, choices.weight_results if device.is_gpu else of_registers
        while width > 1 and (int(self.column.extent) % width or width * self.row_count > most):
            width //= 2
        return width


def few_rows(graph: StitchGraph, weight: int, choices: Choices) -> FewRows | None:
    """Return the product of few rows that a graph computes, or None if it computes anything else.

    Args:
        graph: of one function.
        weight: the position of the weight among its inputs.
        choices: the device's constants of choice.
    """
    if len(graph.operators) != 1 or len(graph.inputs) != 2 or len(graph.outputs) != 1:
        return None
    (op,) = graph.operators
    if not op.contraction or not op.output.dtype.startswith(("float", "bfloat")) or not is_static(op.extents):
        return None
    if len(op.accesses) != 2 or any(a.guarded for a in op.accesses) or _factors(op) is None:
        return None
    read = {a.tensor: set().union(*map(compat.free_vars, a.indices)) for a in op.accesses}
    if len(read) != 2:
        return None
    of_weight, of_data = read[graph.inputs[weight]], read[graph.inputs[1 - weight]]
    live = [a for a in op.spatial if a.extent != 1]
    rows = tuple(a for a in live if a.var not in of_weight)
    columns = [a for a in live if a.var in of_weight and a.var not in of_data]
    if len(rows) + len(columns) != len(live) or len(columns) != 1:
        return None
    product = FewRows(op, graph.inputs[weight], rows, columns[0])
    is_few = product.row_count <= choices.few_rows and all(a.extent for a in op.axes)
    return (
        product if is_few and all(a.var in of_weight & of_data for a in op.reduce if a.extent != 1) else None
    )


def sums_of(product: FewRows, graph: StitchGraph, width: int, order: Sequence[int]) -> PrimFunc:
    """Return a function that computes a product of few rows by sums.

    It has the parameters of the product's function, but for the weight, which may be permuted. Elements of half types
    are multiplied and added in float32.

    Args:
        found: the product.
        graph: of the product's function.
        width: how many neighbouring rows of weights are read together.
        order: for each axis of the weight that the function reads, the axis of the product's weight.
    """
    op, operands = product.operator, _Operands(product, graph, order)
    dtype = op.output.dtype if item_bytes(op.output.dtype) > 2 else "float32"
    rows = list(itertools.product(*(range(int(a.extent)) for a in product.rows)))
    count = int(product.column.extent) // width

    def one(row: Sequence[int], i: int) -> Any:
        reduced = [_reduced(a) for a in op.reduce]
        fixed: dict[Var, Expr] = {a.var: compat.const(0, "int64") for a in op.spatial}
        fixed |= {a.var: compat.const(m, "int64") for a, m in zip(product.rows, row, strict=True)}
        fixed |= {a.var: axis.var for a, axis in zip(op.reduce, reduced, strict=True)}

        def element(n: Expr) -> Expr:
            values = {**fixed, product.column.var: n * width + i if width > 1 else n}
            left, right = (factor.astype(dtype) for factor in operands.factors(values))
            return te.sum(left * right, axis=reduced)

        name = "_".join(map(str, (op.name, *row, *([i] if width > 1 else []))))
        return te.compute(_extents([count]), element, name)

    sums = [one(row, i) for row in rows for i in range(width)]
    result = te.compute(
        _extents(op.output.shape), _picker(product, sums, width, op.output.dtype), f"{op.name}_of_sums"
    )
    return te.create_prim_func([*operands.tensors, result])


def columns_of(product: FewRows, graph: StitchGraph, start: int, count: int) -> PrimFunc:
    """Return a function that computes some columns of a product of few rows.

    It has the parameters of the product's function.

    Args:
        found: the product.
        graph: of the product's function.
        start: the first column.
        count: the number of columns.
    """
    op, column = product.operator, product.column
    operands = _Operands(product, graph, range(len(product.weight.shape)))
    reduced = [_reduced(a) for a in op.reduce]

    def element(*indices: Expr) -> Expr:
        values = {a.var: i + start if a is column else i for a, i in zip(op.spatial, indices)}
        values |= {a.var: axis.var for a, axis in zip(op.reduce, reduced, strict=True)}
        left, right = operands.factors(values)
        return te.sum((left * right).astype(op.output.dtype), axis=reduced)

    shape = [count if a is column else int(a.extent) for a in op.spatial]
    return te.create_prim_func([*operands.tensors, te.compute(_extents(shape), element, op.name)])


def _picker(product: FewRows, sums: Sequence[Any], width: int, dtype: str) -> Callable[..., Expr]:
    """Return the function from the result's indices to the sum that is the element there."""
    axes = list(product.operator.spatial)

    def element(*indices: Expr) -> Expr:
        at = dict(zip((a.var for a in axes), indices))
        column = at[product.column.var]
        row: Expr = compat.const(0, "int64")
        for axis in product.rows:
            row = row * int(axis.extent) + at[axis.var]
        which = row * width + tirx.floormod(column, width) if width > 1 else row
        index = tirx.floordiv(column, width) if width > 1 else column
        value = sums[-1][index]
        for i in reversed(range(len(sums) - 1)):
            value = tirx.Select(which == i, sums[i][index], value)
        return value.astype(dtype)

    return element


def _factors(op: Operator) -> tuple[Expr, Expr] | None:
    """Return the factors that a contraction adds up products of, if each is an element, or an element converted."""
    value = without_casts(op.value)
    if compat.kind(value) != "Mul":
        return None
    return (
        (value.a, value.b)
        if all(compat.is_load(without_casts(each)) for each in (value.a, value.b))
        else None
    )


class _Operands:
    """The tensors that a function of a product reads: those of the product's function, the weight in any order."""

    def __init__(self, product: FewRows, graph: StitchGraph, order: Sequence[int]):
        self.operator, self.order = product.operator, order
        self.weight = graph.inputs.index(product.weight)
        self.position = {t: i for i, t in enumerate(graph.inputs)}
        shapes = [list(t.shape) for t in graph.inputs]
        shapes[self.weight] = [product.weight.shape[i] for i in order]
        self.tensors = [
            te.placeholder(_extents(shape), t.dtype, t.name)
            for shape, t in zip(shapes, graph.inputs, strict=True)
        ]

    def factors(self, values: Mapping[Var, Expr]) -> tuple[Expr, Expr]:
        """Return both factors of an element of the sum, in the types in which the product multiplies them.

        Args:
            values: the values of the product's axes.
        """
        both = _factors(self.operator)
        assert both is not None
        left, right = (self._read(each, values).astype(compat.dtype_of(each)) for each in both)
        return left, right

    def _read(self, factor: Expr, values: Mapping[Var, Expr]) -> Expr:
        load = without_casts(factor)
        position = self.position[self.operator.operand[compat.load_buffer(load)]]
        at = [compat.substitute(i, values) for i in compat.elements(load.indices)]
        if position == self.weight:
            at = [at[i] for i in self.order]
        return self.tensors[position][tuple(at)]


def _reduced(axis: Axis) -> Any:
    """Return an axis of TE that runs over an axis of a reduction."""
    extent = compat.const(int(axis.extent), "int64")
    return te.reduce_axis((compat.const(0, "int64"), extent), str(axis.var))


def _extents(shape: Sequence[Any]) -> list[Expr]:
    return [compat.const(int(e), "int64") for e in shape]
