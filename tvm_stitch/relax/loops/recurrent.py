# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: a private function for each direction of a layer, with a loop over the steps.

The function has an attribute that describes the layer. For CPUs a pass replaces calls of it by one kernel
(``recurrent_layers.py``). TVM alone compiles the function as it is. The product of the inputs by their weights is one
matmul before the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from ...compute.recurrent.cell import Layer
from .functions import private_function
from .loop import loop
from .rows import empty, row, scalar, with_row

ATTRIBUTE = "tvm_stitch.recurrent_layer"
"""Attribute of the function of a layer: the text of its description."""

Operands = Mapping[str, relax.Expr]
"""The operands of a layer by the names of ``Layer.operands``."""


def recurrent(builder: relax.BlockBuilder, layer: Layer, operands: Operands) -> list[relax.Var]:
    """Emit one direction of a recurrent layer.

    Args:
        builder: the builder of the surrounding function.
        layer: the layer.
        operands: tensors by name, as ``layer.operands`` lists them, all of one float type but for ``lengths``.

    Returns:
        The states of all steps ``<T,B,H>``, which are 0 behind a sequence's length, the last state ``<B,H>``, and an
        LSTM's last cell state.
    """
    given = [_bound(builder, operands[name]) for name in layer.operands]
    params = [relax.Var(name, value.ty) for name, value in zip(layer.operands, given, strict=True)]

    def body(own: list[relax.Var]) -> list[Any]:
        return looped(builder, layer, dict(zip(layer.operands, own, strict=True)))

    function = private_function(
        builder, f"{layer.cell.kind}_layer", params, body, {ATTRIBUTE: layer.to_text()}
    )
    done = builder.emit(relax.Call(function, given))
    return [builder.emit(relax.TupleGetItem(done, i)) for i in range(2 + layer.cell.has_cell_state)]


def looped(builder: relax.BlockBuilder, layer: Layer, operands: Operands) -> list[relax.Var]:
    """Emit a layer as a loop. Arguments and results are those of :func:`recurrent`."""
    cell, emit = layer.cell, builder.emit
    x, h = operands["x"], operands["h"]
    steps, batch, _ = x.ty.shape.values
    dtype = str(x.ty.dtype.dtype)
    if cell.program is None:
        projected = emit(R.matmul(x, emit(R.permute_dims(operands["w"]))))
        projected = emit(R.add(projected, operands["bias"]))
    else:
        projected = x
    weights = emit(R.permute_dims(operands["r"]))
    names = layer.optional
    optional = [operands[name] for name in names]

    def step(number: Any, unchanging: list[Any], state: list[Any]) -> Sequence[Any]:
        of = dict(zip(("projected", "weights", *names), unchanging, strict=True))
        values = _Values(builder, dtype)
        time = steps - tirx.const(1, "int64") - number if layer.backwards else number
        inputs = _parts(builder, row(builder, of["projected"], time), cell.inputs)
        before = state[0]
        product_bias = of.get("product_bias")
        if cell.two_products:
            split = _columns(builder, of["weights"], cell.hidden, 2)
            products = _parts(builder, emit(R.matmul(before, split[0])), 2)
            update, operand = cell.first_half(values, inputs[:2], products, before)
            after = cell.second_half(values, inputs[2], emit(R.matmul(operand, split[1])), update, before)
            after_cell = None
        else:
            products = _parts(builder, emit(R.matmul(before, of["weights"])), cell.gates)
            if product_bias is not None:
                products[-1] = emit(R.add(products[-1], product_bias))
            seen = (
                _parts(builder, of["vectors" if cell.program else "peepholes"], cell.vectors)
                if cell.vectors
                else ()
            )
            cell_state = state[1] if cell.has_cell_state else None
            after, after_cell = cell.step(values, inputs, products, before, cell_state, seen)
            if cell.projection is not None:
                after = emit(R.matmul(after, emit(R.permute_dims(of["projection"]))))
        shown = after
        if layer.masked:
            now = scalar(builder, time, "int32")
            inside = emit(R.expand_dims(emit(R.less(now, of["lengths"])), 1))
            shown = emit(R.where(inside, after, relax.const(0, dtype)))
            after = emit(R.where(inside, after, before))
            if after_cell is not None:
                after_cell = emit(R.where(inside, after_cell, state[1]))
        states = [after] if after_cell is None else [after, after_cell]
        return [*states, with_row(builder, state[-1], shown, time)]

    y = empty(builder, [steps, batch, cell.state], dtype)
    states = [h, operands["c"]] if cell.has_cell_state else [h]
    *last, y = loop(builder, cell.kind, steps, [*states, y], [projected, weights, *optional], step)
    return [y, *last]


def _bound(builder: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    return value if isinstance(value, (relax.Var, tvm.ir.GenericConst)) else builder.emit(value)


def _parts(builder: relax.BlockBuilder, x: relax.Expr, count: int) -> list[relax.Expr]:
    """Return equal parts of the last axis."""
    if count == 1:
        return [x]
    parts = builder.emit(R.split(x, count, axis=-1))
    return [builder.emit(relax.TupleGetItem(parts, i)) for i in range(count)]


def _columns(builder: relax.BlockBuilder, weights: relax.Expr, hidden: int, gates: int) -> list[relax.Expr]:
    """Return the weights of the first gates, and those of the others."""
    parts = builder.emit(R.split(weights, [gates * hidden], axis=-1))
    return [builder.emit(relax.TupleGetItem(parts, i)) for i in range(2)]


class _Values:
    """The arithmetic of a graph: each value is an operator of Relax."""

    def __init__(self, builder: relax.BlockBuilder, dtype: str):
        self.builder, self.dtype = builder, dtype

    def constant(self, value: float) -> Any:
        return relax.const(value, self.dtype)

    def apply(self, operator: str, *operands: Any) -> Any:
        if operator == "zero_below":
            least, x = operands
            above = self.builder.emit(R.greater(x, least))
            return self.builder.emit(R.where(above, x, self.constant(0.0)))
        return self.builder.emit(getattr(R, operator)(*operands))
