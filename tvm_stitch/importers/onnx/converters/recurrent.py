# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN: each direction becomes a recurrent layer, compiled once for all numbers of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ....compute.recurrent.cell import ACTIVATIONS, GATES, Activation, Cell, Layer, activation
from ....relax.loops.recurrent import recurrent
from .node import ANY, Conversion, Node, Unsupported, shape_of

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_WITH_ALPHA = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
_WITH_BETA = {"affine", "scaledtanh", "hardsigmoid"}
"""Activations that take an element of ``activation_alpha`` and ``activation_beta``."""


def _recurrent(kind: str, node: Node) -> tuple[Any, ...]:
    """(X, W, R, B, sequence_lens, initial_h, and for LSTM initial_c and P) -> (Y, Y_h, and for LSTM Y_c)."""
    attributes, gates = node.attributes, GATES[kind]
    direction = attributes["direction"]
    if direction not in _DIRECTIONS:
        raise Unsupported(f"unknown direction {direction!r}; known are {', '.join(_DIRECTIONS)}")
    backwards = _DIRECTIONS[direction]
    count = len(backwards)
    dtype = node.dtype(0)
    hidden = _hidden(node, gates, count)
    batch_first = bool(attributes.get("layout", 0))
    x = node.tensor(0)
    if batch_first:
        x = node.emit(R.permute_dims(x, [1, 0, 2]))
    batch = x.ty.shape.values[1]
    functions = _activations(node, kind, count)
    lengths = node.optional(4)
    directions = []
    for number, reverse in enumerate(backwards):
        cell = Cell(
            kind,
            hidden,
            functions[number],
            attributes.get("clip") or None,
            bool(attributes.get("input_forget", 0)),
            bool(attributes.get("linear_before_reset", 0)),
            kind == "lstm" and node.has(7),
        )
        layer = Layer(cell, reverse, lengths is not None)
        operands = {"x": x, "w": _of(node, 1, number), "r": _of(node, 2, number)}
        operands["bias"], product_bias = _biases(node, cell, number, dtype)
        for name, position in (("h", 5), ("c", 6)):
            operands[name] = _state(node, position, number, batch, hidden, dtype, batch_first)
        if cell.peepholes:
            operands["peepholes"] = _of(node, 7, number)
        if product_bias is not None:
            operands["product_bias"] = product_bias
        if lengths is not None:
            operands["lengths"] = lengths
        directions.append((layer, operands))
    # A kernel computes both directions where the operands of both are there.
    results = [recurrent(node.bb, layer, operands) for layer, operands in directions]
    return tuple(
        _joined(node, [result[i] for result in results], i == 0, batch_first) for i in range(len(results[0]))
    )


def _hidden(node: Node, gates: int, directions: int) -> int:
    """Return the number of hidden units, after a check of the weights' shapes."""
    weights, recurrent_weights = node.static_shape(1), node.static_shape(2)
    if len(recurrent_weights) != 3:
        raise Unsupported(f"its R has shape {recurrent_weights}, not [directions, {gates} * hidden, hidden]")
    hidden: int = recurrent_weights[2]
    given = node.attributes.get("hidden_size")
    wanted = [directions, gates * hidden]
    if weights[:2] != wanted or recurrent_weights[:2] != wanted or given not in (None, hidden):
        raise Unsupported(
            f"its W {weights} and R {recurrent_weights} do not fit {directions} directions and "
            f"hidden_size {given}"
        )
    return hidden


def _activations(node: Node, kind: str, directions: int) -> list[tuple[Activation, ...]]:
    """Return the activations of each direction. Parameters belong to the functions that take one, in order."""
    each = len(ACTIVATIONS[kind])
    names = list(node.attributes.get("activations") or []) or [*ACTIVATIONS[kind]] * directions
    if len(names) == each and directions == 2:
        names = names * 2
    if len(names) == 2 * each and directions == 1:  # ONNX's default for RNN
        names = names[:each]
    if len(names) != each * directions:
        raise Unsupported(f"it names {len(names)} activations, and {directions} directions take {each} each")
    alphas = iter(node.attributes.get("activation_alpha") or [])
    betas = iter(node.attributes.get("activation_beta") or [])
    made = []
    for name in names:
        alpha = next(alphas, None) if name.lower() in _WITH_ALPHA else None
        beta = next(betas, None) if name.lower() in _WITH_BETA else None
        try:
            made.append(activation(name, alpha, beta))
        except ValueError as error:
            raise Unsupported(str(error)) from None
    return [tuple(made[i * each : (i + 1) * each]) for i in range(directions)]


def _of(node: Node, position: int, direction: int) -> relax.Expr:
    """Return an input's element of its first axis, which counts directions."""
    constant = node.constant(position)
    if constant is not None:
        return _constant(constant[direction])
    return _taken(node, node.tensor(position), direction, 0)


def _constant(values: np.ndarray) -> tvm.ir.GenericConst:
    return relax.const(np.ascontiguousarray(values), str(values.dtype))


def _taken(node: Node, x: relax.Expr, number: int, axis: int) -> relax.Expr:
    """Return an element of an axis."""
    return node.emit(R.squeeze(node.emit(R.strided_slice(x, [axis], [number], [number + 1])), [axis]))


def _biases(node: Node, cell: Cell, direction: int, dtype: str) -> tuple[relax.Expr, relax.Expr | None]:
    """Return the sum of both biases, and the one that stays inside the reset gate's product, if the cell has it."""
    size = cell.gates * cell.hidden
    if not node.has(3):
        zeros = np.zeros(size, dtype)
        return _constant(zeros), _constant(zeros[: cell.hidden]) if cell.product_bias else None
    both = _of(node, 3, direction)
    last = 2 * cell.hidden
    if isinstance(both, tvm.ir.GenericConst):
        values = both.value.numpy()
        total = values[:size] + values[size:]
        if not cell.product_bias:
            return _constant(total), None
        total[last:] = values[last:size]
        return _constant(total), _constant(values[size + last :])

    def piece(begin: int, end: int) -> relax.Expr:
        return node.emit(R.strided_slice(both, [0], [begin], [end]))

    total = node.emit(R.add(piece(0, size), piece(size, 2 * size)))
    if not cell.product_bias:
        return total, None
    gates = node.emit(R.strided_slice(total, [0], [0], [last]))
    return node.emit(R.concat([gates, piece(last, size)])), piece(size + last, 2 * size)


def _state(
    node: Node, position: int, direction: int, batch: Any, hidden: int, dtype: str, batch_first: bool
) -> relax.Expr:
    """Return a direction's first state <batch, hidden>. Without an input it is 0."""
    if not node.has(position):
        return node.emit(R.zeros(relax.ShapeExpr([batch, hidden]), dtype))
    state = node.tensor(position)
    given = shape_of(state)[-1]
    if isinstance(given, int) and given != hidden:
        raise Unsupported(
            f"its first state (input {position}) has {given} units, and its weights have {hidden}; PyTorch exports an"
            " LSTM with proj_size so, which ONNX has no operator for: import the torch.export program instead"
        )
    return _taken(node, state, direction, 1 if batch_first else 0)


def _joined(node: Node, parts: list[relax.Expr], is_sequence: bool, batch_first: bool) -> relax.Expr:
    """Return the results of all directions, with an axis for the directions."""
    axis = 1 if is_sequence else 0
    parts = [node.emit(R.expand_dims(part, axis)) for part in parts]
    whole = parts[0] if len(parts) == 1 else node.emit(R.concat(parts, axis))
    if batch_first:  # <steps, directions, batch, hidden> and <directions, batch, hidden>
        whole = node.emit(R.permute_dims(whole, [2, 0, 1, 3] if is_sequence else [1, 0, 2]))
    return whole


def _conversion(kind: str, *more: str) -> Conversion:
    names = ("activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size")
    return Conversion(
        lambda node: _recurrent(kind, node), dict.fromkeys((*names, "layout", *more), ANY), since=7
    )


CONVERSIONS = {
    ("", "LSTM"): _conversion("lstm", "input_forget"),
    ("", "GRU"): _conversion("gru", "linear_before_reset"),
    ("", "RNN"): _conversion("rnn"),
}
