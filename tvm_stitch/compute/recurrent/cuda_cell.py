# SPDX-License-Identifier: Apache-2.0
"""The code of a lane's cell: one hidden unit in one row of the batch, whose states stay in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import compat
from ...codegen import builder as B
from ...compat import Buffer, Expr, tir
from ...repairs.tir.arithmetic import DEVICE
from ...repairs.tir.device_math import device_call
from .cell import Layer, Part
from .cuda_calls import FLOAT


class LaneCell:
    """Emits a cell of a lane."""

    def __init__(
        self,
        layer: Layer,
        of: Mapping[str, Buffer],
        unit: Expr,
        row: Expr,
        there: Expr,
        column: int,
        steps: Expr,
    ):
        """Allocate the registers of a cell.

        Args:
            layer: the layer.
            of: operands and results by name.
            unit, row: the cell's unit of the layer, and its row of the batch.
            there: whether there are such a unit and row.
            column: the layer's first column of the projected inputs.
            steps: number of steps.
        """
        self.layer, self.cell, self.of, self.steps = layer, layer.cell, of, steps
        self.unit, self.row, self.there, self.column = unit, row, there, column
        self.dtype = compat.buffer_dtype(of["y"])
        kinds = {"state": FLOAT, "cell_state": FLOAT, "update": FLOAT, "sent": FLOAT, "shown": FLOAT}
        self.held = {name: B.local([1], dtype, name) for name, dtype in (kinds | {"length": "int32"}).items()}
        self.inputs = B.local([self.cell.inputs], FLOAT, "inputs")

    def enter(self, has_steps: Expr | None) -> None:
        """Emit the loads of the first states and inputs. ``has_steps`` is None if there are steps."""
        for name, buffer in self.held.items():
            self._set(name, compat.const(0, compat.buffer_dtype(buffer)))
        for gate in range(self.cell.inputs):
            B.store(self.inputs, compat.float_const(0.0, FLOAT), [B.i64(gate)])
        with B.when(self.there):
            for name, operand in (("state", "h"), ("cell_state", "c")):
                if operand in self.of:
                    self._set(name, self._wide(B.fetch(self.of[operand], self.row, self.unit)))
            if self.layer.masked:
                self._set("length", B.fetch(self.of["lengths"], self.row))
            with B.when(has_steps):
                self._load_inputs(B.i64(0))

    @property
    def sent(self) -> Expr:
        """The state that the last part computed, or the operand of the next part."""
        return self._get("sent")

    def compute(self, part: Part, products: list[Expr]) -> None:
        """Emit the cell of a part of a step, from the products of the part's gates."""
        with B.when(self.there):
            self._compute(part, products)

    def store(self, step: Expr) -> None:
        """Emit the store of a step's result, and the loads of the next step's inputs."""
        one = B.i64(1)
        with B.when(self.there):
            B.store(self.of["y"], self._narrow(self._get("shown")), [self._time(step), self.row, self.unit])
            self._load_inputs(tir.min(step + one, self.steps - one))  # on their way until the next cells

    def leave(self) -> None:
        """Emit the stores of the last states."""
        with B.when(self.there):
            to = [self.row, self.unit]
            B.store(self.of["last"], self._narrow(self._get("state")), to)
            if self.cell.has_cell_state:
                B.store(self.of["last_cell"], self._narrow(self._get("cell_state")), to)

    def _time(self, step: Expr) -> Expr:
        return self.steps - B.i64(1) - step if self.layer.backwards else step

    def _load_inputs(self, step: Expr) -> None:
        for gate in range(self.cell.inputs):
            at = B.i64(self.column + gate * self.cell.hidden) + self.unit
            B.store(self.inputs, B.fetch(self.of["x"], self._time(step), self.row, at), [B.i64(gate)])

    def _wide(self, value: Expr) -> Expr:
        return value if self.dtype == FLOAT else tir.Cast(FLOAT, value)

    def _narrow(self, value: Expr) -> Expr:
        return value if self.dtype == FLOAT else tir.Cast(self.dtype, value)

    def _get(self, name: str) -> Expr:
        """Return a value that the lane keeps in a register."""
        return B.fetch(self.held[name], 0)

    def _set(self, name: str, value: Expr) -> None:
        B.store(self.held[name], value, [B.i64(0)])

    def _compute(self, part: Part, products: list[Expr]) -> None:
        cell, of, values = self.cell, self.of, _Values()
        numbers = part.gates if cell.program is None else range(cell.inputs)
        inputs = [B.fetch(self.inputs, number) for number in numbers]
        state = self._get("state")
        if cell.product_bias:
            bias = self._wide(B.fetch(of["product_bias"], self.unit))
            products[-1] = values.apply("add", products[-1], bias)
        if cell.two_products and not part.second:
            update, operand = cell.first_half(values, inputs, products, state)
            update, operand = values.emitted(update, operand)
            self._set("update", update)
            self._set("sent", operand)
            return
        before, after = None, None
        if cell.two_products:
            result = cell.second_half(values, inputs[0], products[0], self._get("update"), state)
        else:
            before = self._get("cell_state") if cell.has_cell_state else None
            of_units = of.get("vectors" if cell.program else "peepholes")
            vectors = [
                B.cell(self._wide(B.fetch(of_units, B.i64(n * cell.hidden) + self.unit)), "vector")
                for n in range(cell.vectors)
            ]
            result, after = cell.step(values, inputs, products, state, before, vectors)
        result, after = values.emitted(result, after)
        shown = result
        if self.layer.masked:
            inside = tir.LT(tir.Cast("int32", self._time(part.step)), self._get("length"))
            shown = B.cell(tir.Select(inside, result, compat.float_const(0.0, FLOAT)), "inside")
            result = B.cell(tir.Select(inside, result, state), "result")
            after = None if after is None else B.cell(tir.Select(inside, after, before), "after")
        if after is not None:
            self._set("cell_state", after)
        self._set("shown", shown)
        self._set("state", result)
        self._set("sent", result)


class _Value:
    """A value of a cell that is not emitted yet.

    Attributes:
        operator: makes the value's expression of its operands.
        operands: values, or expressions of what is there.
        depth: operators between it and the farthest expression.
    """

    def __init__(self, operator: Callable[..., Expr], operands: Sequence[Any]):
        self.operator, self.operands = operator, operands
        self.depth: int = 1 + max((each.depth for each in operands if isinstance(each, _Value)), default=0)
        self.expr: Expr | None = None


class _Values:
    """The arithmetic of a cell. Values of all gates are emitted side by side, so that none waits for another one.

    A compiler keeps their order: else the exponential of a gate waits for the quotient of the gate before.
    """

    def constant(self, value: float) -> Expr:
        return compat.float_const(value, FLOAT)

    def apply(self, operator: str, *operands: Any) -> _Value:
        if operator == "sigmoid":
            return _Value(_reciprocal, [_Value(_decay, operands)])
        if operator == "tanh":
            return _Value(_tanh_with, [*operands, _Value(_double_decay, operands)])
        return _Value(_OPERATORS[operator], operands)

    @staticmethod
    def emitted(*values: Any) -> list[Expr]:
        """Emit values, and return their expressions."""
        needed: dict[_Value, None] = {}

        def need(value: Any) -> None:
            if isinstance(value, _Value) and value.expr is None and value not in needed:
                for operand in value.operands:
                    need(operand)
                needed[value] = None

        for value in values:
            need(value)
        for value in sorted(needed, key=lambda each: each.depth):
            value.expr = B.cell(value.operator(*map(_expr, value.operands)), "value")
        return [_expr(value) for value in values]


def _expr(value: Any) -> Expr:
    return value.expr if isinstance(value, _Value) else value


def _binary(node: type[Any], a: Expr, b: Expr) -> Expr:
    return DEVICE.binary(node, a, b)


def _decay(x: Expr) -> Expr:
    """Return exp(-x)."""
    return DEVICE.called("exp", tir.exp, _binary(tir.Sub, compat.float_const(0.0, FLOAT), x))


def _reciprocal(e: Expr) -> Expr:
    """Return 1 / (1 + e): the sigmoid of x if e is exp(-x)."""
    one = compat.float_const(1.0, FLOAT)
    return _binary(tir.Div, one, _binary(tir.Add, one, e))


def _double_decay(x: Expr) -> Expr:
    """Return exp(-2 |x|)."""
    double = _binary(tir.Mul, compat.float_const(-2.0, FLOAT), DEVICE.called("fabs", tir.abs, x))
    return DEVICE.called("exp", tir.exp, double)


def _tanh_with(x: Expr, e: Expr) -> Expr:
    """Return tanh(x), where e is exp(-2 |x|)."""
    return device_call("tanh_with", x, e)


_OPERATORS: dict[str, Callable[..., Expr]] = {
    "add": lambda a, b: _binary(tir.Add, a, b),
    "subtract": lambda a, b: _binary(tir.Sub, a, b),
    "multiply": lambda a, b: _binary(tir.Mul, a, b),
    "divide": lambda a, b: _binary(tir.Div, a, b),
    "maximum": lambda a, b: _binary(tir.Max, a, b),
    "minimum": lambda a, b: _binary(tir.Min, a, b),
    "abs": lambda x: DEVICE.called("fabs", tir.abs, x),
    "exp": lambda x: DEVICE.called("exp", tir.exp, x),
    "log": lambda x: DEVICE.called("log", tir.log, x),
    "zero_below": lambda least, x: tir.Select(tir.GT(x, least), x, compat.float_const(0.0, FLOAT)),
}
