# SPDX-License-Identifier: Apache-2.0
"""PyTorch's recurrent layers: each direction of each layer is compiled once for all numbers of steps.

``torch.export`` fixes the number of steps of a recurrent layer, because PyTorch finds the result's shape step by step.
An export within :func:`symbolic_steps` keeps the number symbolic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from tvm import relax
from tvm.relax import op as R

from ....compute.recurrent.cell import ACTIVATIONS, GATES, Cell, Layer, activation
from ....relax.loops.recurrent import recurrent
from ..core import Converter

ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""PyTorch's numbers of gates in ONNX's order."""


def recurrent_converters() -> dict[str, Converter]:
    """Return the converters of recurrent layers, by the names of PyTorch's operators and of :func:`symbolic_steps`."""
    made: dict[str, Converter] = {}
    for name, kind, functions in (
        ("lstm", "lstm", ACTIVATIONS["lstm"]),
        ("gru", "gru", ACTIVATIONS["gru"]),
        ("rnn_tanh", "rnn", ("tanh",)),
        ("rnn_relu", "rnn", ("relu",)),
    ):
        convert = partial(_layers, kind, tuple(activation(each) for each in functions))
        made |= dict.fromkeys((f"{name}.input", f"{name}.default", f"tvm_stitch::{name}.default"), convert)
    return made


def kept_whole() -> set[Any]:
    """Return PyTorch's operators that must not be decomposed into one step after the other."""
    import torch

    aten = torch.ops.aten
    return {aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input}


def register_operators() -> None:
    """Let PyTorch load programs that were exported within :func:`symbolic_steps`."""
    _operators()


def _layers(kind: str, functions: Any, node: Any, importer: Any) -> relax.Tuple:
    """(input, first states, weights, has biases, layers, dropout, train, bidirectional, batch first).

    Returns all states of the last layer, the last states of all layers, and for an LSTM their last cell states.
    """
    x, hx, weights, has_biases, layers, dropout, train, bidirectional, batch_first = node.args
    builder = importer.block_builder
    emit = builder.emit
    if train and dropout:
        raise ValueError(f"{node.name}: dropout {dropout:g} in training; export the module in eval() mode")
    states = [importer.env[each] for each in (hx if kind == "lstm" else [hx])]
    x = importer.env[x]
    if batch_first:
        x = emit(R.permute_dims(x, [1, 0, 2]))
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    last: list[list[Any]] = [[] for _ in states]
    for layer in range(layers):
        outputs, made = [], []
        for direction in range(directions):
            number = layer * directions + direction
            own = [importer.env[w] for w in weights[number * each : (number + 1) * each]]
            first = [_element(emit, state, number) for state in states]
            made.append(
                _direction(builder, kind, functions, bool(direction), x, own, bool(has_biases), first)
            )
        for (
            own_layer,
            operands,
        ) in made:  # a kernel computes both directions where the operands of both are there
            y, *after = recurrent(builder, own_layer, operands)
            outputs.append(y)
            for results, state in zip(last, after, strict=True):
                results.append(emit(R.expand_dims(state, 0)))
        x = outputs[0] if directions == 1 else emit(R.concat(outputs, -1))
    if batch_first:
        x = emit(R.permute_dims(x, [1, 0, 2]))
    joined = [parts[0] if len(parts) == 1 else emit(R.concat(parts, 0)) for parts in last]
    return relax.Tuple([x, *joined])


def _direction(
    builder: Any,
    kind: str,
    functions: Any,
    backwards: bool,
    x: Any,
    weights: Sequence[Any],
    has_biases: bool,
    first: Sequence[Any],
) -> tuple[Layer, dict[str, Any]]:
    """Return one direction of a layer, and its operands."""
    emit = builder.emit
    gates = GATES[kind]
    hidden = int(weights[0].ty.shape.values[0]) // gates
    state = int(weights[1].ty.shape.values[1])
    dtype = str(x.ty.dtype.dtype)
    cell = Cell(
        kind,
        hidden,
        functions,
        linear_before_reset=kind == "gru",
        projection=state if state != hidden else None,
    )

    def ordered(w: Any) -> list[Any]:
        """Return the gates' parts of a weight or bias, in ONNX's order."""
        if gates == 1:
            return [w]
        parts = emit(R.split(w, gates, axis=0))
        return [emit(relax.TupleGetItem(parts, at)) for at in ORDER[kind]]

    def whole(parts: list[Any]) -> Any:
        return parts[0] if gates == 1 else emit(R.concat(parts, 0))

    operands = {"x": x, "w": whole(ordered(weights[0])), "r": whole(ordered(weights[1])), "h": first[0]}
    if kind == "lstm":
        operands["c"] = first[1]
    if has_biases:
        ours, theirs = ordered(weights[2]), ordered(weights[3])
        inside = theirs.pop() if kind == "gru" else None
        summed = [emit(R.add(a, b)) for a, b in zip(ours, theirs)]
        operands["bias"] = whole([*summed, *ours[len(summed) :]])
    else:
        operands["bias"] = emit(R.zeros(relax.ShapeExpr([gates * hidden]), dtype))
        inside = emit(R.zeros(relax.ShapeExpr([hidden]), dtype))
    if cell.product_bias:
        operands["product_bias"] = inside
    if cell.projection is not None:
        operands["projection"] = weights[-1]
    return Layer(cell, backwards), operands


def _element(emit: Any, x: Any, number: int) -> Any:
    """Return an element of the first axis."""
    return emit(R.squeeze(emit(R.strided_slice(x, [0], [number], [number + 1])), [0]))


@contextmanager
def symbolic_steps() -> Iterator[None]:
    """Let ``torch.export.export`` keep the number of steps of LSTM, GRU and RNN symbolic.

    In this context ``torch.nn``'s recurrent layers call operators ``tvm_stitch::lstm`` and the like, whose results'
    shapes PyTorch knows without a step. A program that ``torch.export.save`` writes with them can be loaded after
    :func:`register_operators` was called.
    """
    from torch.nn.modules import rnn

    before = rnn._VF
    rnn._VF = _Operators(before)
    try:
        yield
    finally:
        rnn._VF = before


class _Operators:
    """PyTorch's table of functions, with recurrent layers of batches replaced."""

    def __init__(self, before: Any):
        self._before = before

    def __getattr__(self, name: str) -> Any:
        if name not in _operators():
            return getattr(self._before, name)

        def call(x: Any, hx: Any, *rest: Any) -> Any:
            packed = not isinstance(rest[0], (list, tuple)) or isinstance(rest[1], (list, tuple))
            if packed:  # a packed sequence has its batch sizes in the second place
                return getattr(self._before, name)(x, hx, *rest)
            return _operators()[name](x, hx, *rest)

        return call


@cache
def _operators() -> dict[str, Any]:
    """Return PyTorch operators with the arguments of ``torch.lstm`` and the like."""
    import torch

    made: dict[str, Any] = {}
    rest = "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, "
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        is_lstm = name == "lstm"
        states = "Tensor[] hx" if is_lstm else "Tensor hx"
        result = "(Tensor, Tensor, Tensor)" if is_lstm else "(Tensor, Tensor)"
        schema = f"(Tensor input, {states}, {rest}bool batch_first) -> {result}"
        full = f"tvm_stitch::{name}"
        torch.library.define(full, schema)
        torch.library.impl(full, "cpu", partial(_run, name))
        torch.library.register_fake(full, partial(_shapes, is_lstm))
        made[name] = getattr(torch.ops.tvm_stitch, name)
    return made


def _run(name: str, *args: Any) -> Any:
    import torch

    return getattr(torch, name)(*args)


def _shapes(is_lstm: bool, x: Any, hx: Any, *rest: Any) -> Any:
    """Return tensors of the results' shapes."""
    states = list(hx) if is_lstm else [hx]
    directions = 2 if rest[5] else 1
    y = x.new_empty([*x.shape[:-1], directions * states[0].shape[-1]])
    return (y, *(state.new_empty(state.shape) for state in states))
